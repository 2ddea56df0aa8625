"""How the page looks: light and dark, wide and narrow, on paper. Colours of heads after Okabe and Ito."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c1e21;--soft:#5c636b;--faint:#e4e7ea;--panel:#f6f7f8;
--accent:#0b6aa8;--heat:#0b6aa8;--bar:#9dc3dc;--hit:#0a7f5a;--hit-back:#e2f3ec;
--c0:#0072b2;--c1:#b87400;--c2:#008a64;--c3:#d0521b;--c4:#b5528a;--c5:#2f97cf}
@media (prefers-color-scheme:dark){:root{--paper:#15181b;--ink:#e7e9eb;--soft:#9aa3ab;--faint:#2c3136;--panel:#1c2024;
--accent:#6cb8ea;--heat:#3d8fc4;--bar:#35607d;--hit:#63d3a6;--hit-back:#17392e;
--c0:#5aaee4;--c1:#e8ac3a;--c2:#3cc49a;--c3:#f5885a;--c4:#e08cbb;--c5:#a3d6f5}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
header,main,footer{max-width:1080px;margin:0 auto;padding:0 24px}
header{padding-top:44px}
h1{font-size:30px;line-height:1.2;font-weight:650;letter-spacing:-.015em;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:21px;font-weight:650;letter-spacing:-.01em;margin:0 0 4px}
h3{font-size:15px;font-weight:600;margin:0;overflow-wrap:anywhere}.user h3{font-size:17px;margin:0 0 8px}
p{margin:0 0 12px;max-width:70ch}
.lead,.soft,figcaption p{color:var(--soft)}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
nav ul{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:18px 0 0;padding:0;font-size:14px}
section{margin:52px 0 0}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:12px;margin:28px 0 0}
.tile{background:var(--panel);border-radius:8px;padding:14px 16px;min-width:0}
.tile dt{font-size:13px;color:var(--soft)}
.tile dd{margin:2px 0 0;font-size:25px;line-height:1.25;font-weight:600;letter-spacing:-.01em;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.tile small{display:block;font-size:13px;font-weight:400;letter-spacing:0;color:var(--soft)}
.note{border-left:3px solid var(--accent);background:var(--panel);border-radius:0 6px 6px 0;padding:9px 14px;
margin:16px 0 0;font-size:14px;max-width:none}
.wide{overflow-x:auto;margin:14px 0 0}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;font-size:14px;padding:0 0 6px}
th,td{padding:6px 12px;text-align:right;border-bottom:1px solid var(--faint);vertical-align:baseline;white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0}
th:last-child,td:last-child{padding-right:0}
thead th{font-weight:500;color:var(--soft);border-bottom-color:var(--soft)}
tbody th{font-weight:500}
td small,th small{font-weight:400;color:var(--soft);font-size:12px;display:block;line-height:1.3}
tr.rule th,tr.rule td{border-top:2px solid var(--faint)}
.best{font-weight:650}
.words td,.words th{text-align:left;white-space:normal;overflow-wrap:anywhere}
.wide tbody th,.wide thead th:first-child{position:sticky;left:0;background:var(--paper)}
.facts{display:grid;grid-template-columns:1fr 1fr;gap:0 40px;margin:10px 0 0}
.facts th{color:var(--soft);font-weight:400;text-align:left;width:34%;white-space:normal}
.facts td{text-align:left;white-space:normal;overflow-wrap:anywhere}
.facts tr:last-child th,.facts tr:last-child td{border-bottom:0}
.charts{display:grid;grid-template-columns:1fr 1fr;gap:34px 40px;margin:20px 0 0}
.charts+.wide{margin-top:36px}
figure{margin:0;min-width:0}
figcaption p{font-size:13px;line-height:1.45;margin:2px 0 8px}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;list-style:none;margin:14px 0 0;padding:0;font-size:13px}
.legend li{display:flex;align-items:center;gap:7px;overflow-wrap:anywhere}
.swatch{width:26px;height:12px;flex:none}
.chart{display:block;width:100%;height:auto;overflow:visible}
.chart text{fill:var(--soft);font:11px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
font-variant-numeric:tabular-nums}
.chart .name,.chart .value{fill:var(--ink)}
.grid{stroke:var(--faint);stroke-width:1}.moment{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 3}
.line{fill:none;stroke-width:1.7;stroke-linejoin:round;stroke-linecap:round}
.bar{stroke-width:2.5;stroke-linecap:round;opacity:.55}
.mark{stroke:var(--paper);stroke-width:1.2}
.c0{stroke:var(--c0);fill:var(--c0)}.c1{stroke:var(--c1);fill:var(--c1)}.c2{stroke:var(--c2);fill:var(--c2)}
.c3{stroke:var(--c3);fill:var(--c3)}.c4{stroke:var(--c4);fill:var(--c4)}.c5{stroke:var(--c5);fill:var(--c5)}
.consensus{stroke:var(--ink);fill:var(--ink)}.r-consensus{stroke:var(--soft);fill:var(--soft)}
.consensus .line{stroke-width:2.6}.r-consensus .line{stroke-dasharray:5 4}
.d1 .line{stroke-dasharray:7 3}.d2 .line{stroke-dasharray:2 3}
details{margin:8px 0 0;font-size:13px}
summary{cursor:pointer;color:var(--accent);width:fit-content}
details .wide{max-height:340px;overflow:auto}
details table{font-size:12.5px}details th,details td{padding:3px 10px}
.heat{table-layout:fixed;min-width:640px}
.heat thead td{width:138px;background:none}
.heat td{text-align:center;border:2px solid var(--paper);border-radius:6px;padding:8px 6px;
background:color-mix(in srgb,var(--heat) var(--w),transparent)}
.heat thead th{border:0;text-align:center;white-space:normal;vertical-align:bottom;font-size:12px;
padding:6px 1px;overflow-wrap:anywhere}
.heat tbody th{border:0;padding-right:14px}.heat td.none{background:none;color:var(--soft)}
.heat td.apart{background:none;text-align:right}
.user{border:1px solid var(--faint);border-radius:10px;padding:20px 22px;margin:20px 0 0}
.chips{display:flex;flex-wrap:wrap;gap:6px;list-style:none;margin:6px 0 16px;padding:0;font-size:13px}
.chips li{background:var(--panel);border-radius:5px;padding:2px 8px;max-width:100%;overflow-wrap:anywhere}
.chips li.hit,mark{background:var(--hit-back);color:var(--hit)}
mark{border-radius:5px;padding:1px 7px;margin:0 -7px;font-weight:600;display:inline-block}
p mark{margin:0}
.lists td,.lists th{white-space:normal;text-align:left;overflow-wrap:anywhere;min-width:100px}
.lists td:first-child,.lists th:first-child{min-width:2.2em;color:var(--soft)}
.lists thead th{font-size:13px}
.vote{background:linear-gradient(var(--bar),var(--bar)) 0 100%/var(--w) 3px no-repeat content-box}
.vote small{padding-bottom:5px}.user p{font-size:14px;margin:0}
.title{display:block}.id{color:var(--soft);font-size:12px}
footer{margin-top:56px;padding-bottom:40px;color:var(--soft);font-size:13px}
code{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
@media (max-width:760px){header,main,footer{padding-left:16px;padding-right:16px}header{padding-top:26px}
h1{font-size:25px}.tiles{grid-template-columns:1fr 1fr}.charts,.facts{grid-template-columns:1fr}
section{margin-top:40px}.tile dd{font-size:20px}th,td{padding:6px 8px}.user{padding:16px 14px}
.facts th{width:38%}.wide caption{max-width:calc(100vw - 64px)}.chart text{font-size:12.5px}}
@media print{:root{--paper:#fff;--ink:#000;--soft:#444;--faint:#ddd;--panel:#f4f4f4;--c0:#0072b2;--c1:#b87400;
--c2:#008a64;--c3:#d0521b;--c4:#b5528a;--c5:#2f97cf;--heat:#0b6aa8;--bar:#9dc3dc;--hit:#0a7f5a;--hit-back:#e2f3ec}
body{font-size:11pt}nav,details{display:none}figure,.user,tr,.tile{break-inside:avoid}h2,h3{break-after:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}.wide{overflow:visible}}
"""
