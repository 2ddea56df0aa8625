# A service of one run: docker run --read-only --tmpfs /tmp -v ./runs:/runs:ro -p 8000:8000 concf /runs/mine
FROM python:3.12-slim

COPY pyproject.toml README.md LICENSE /concf/
COPY src /concf/src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu '/concf[serve]' \
    && useradd --uid 10001 --no-create-home concf

USER 10001
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["concf", "serve", "--host", "0.0.0.0"]
CMD ["/runs/mine"]
