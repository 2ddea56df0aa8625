import os
import subprocess
import sys

CODE = """
import concf, sys, torch; from concurrent.futures import ThreadPoolExecutor; from concf.data.simulate import Simulation
from concf.runtime.executors import use_one_thread
sys.path[:0] = sys.argv[1:]; from small_recipe import assert_same, small
LOG, n = Simulation(users=80, items=50, events=1800, fashion=0.5).draw(1), 1500
def answers(run):
    model, items = concf.Recommender(run), list(range(50))
    histories = {1000 + user: items[user % 40 :][: 1 + user % 9] for user in range(80)}
    lists = model.recommend(), *(model.recommend(history=histories, by=by) for by in ("consensus", "student"))
    return [each.rows() for each in lists], model.explain(*lists[0].row(30)[:2])
def everything(protocol, out):
    run = concf.train(concf.prepare(LOG[:n], protocol=protocol), small(), seed=3, out=out)
    runs = [concf.load_run(out, run.data), *(concf.update(run, LOG[n:], refresh=how) for how in (False, True))]
    return [run, *runs], list(ThreadPoolExecutor(2).map(answers, [run, *runs]))
torch.set_num_threads(4)  # fewer by default where there are fewer cores
four = [everything(each, each) for each in ("random", "time")]
use_one_thread()
for each, (runs, found) in zip(("random", "time"), four):
    others, expected = everything(each, f"{each} again")
    assert not any(map(assert_same, runs, others)) and found == expected, each
"""


def test_four_threads_give_to_the_bit_what_one_gives(tmp_path):
    command, environment = [sys.executable, "-W", "ignore", "-c", CODE, *sys.path], {"OMP_NUM_THREADS": "4"}
    subprocess.run(command, env=os.environ | environment, cwd=tmp_path, check=True)
