"""Charts of Plotly and Bokeh as pages of their own, and of Altair as pictures. All three draw for a notebook that has loaded their programs
for the browser before, or loads them from the Internet.

Loaded by a kernel whose program has imported one of them, and by no other.
"""

import json
import subprocess
import sys

PLOTLY = "application/vnd.plotly.v1+json"
# The beginning of Plotly's program for the browser, which it displays before its first chart.
PLOTLY_START = "window.PlotlyConfig"
BOKEH_TITLE = "Bokeh Plot"
# A process of its own for each picture: JavaScript keeps threads, which no checkpoint has, and aborts where memory is short.
DRAW = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.vegalite_to_png(sys.stdin.read(), scale=2))"
# Seconds for a picture, which takes one.
MAX_SECONDS = 20


def display(data, output):
    """Shows what is displayed as it is without a notebook: Plotly's program alone is nothing, and its chart a page."""
    if PLOTLY in data and "text/html" in data:
        page = plotly_page(data[PLOTLY], output.takes_library())
        output.display({**data, "text/html": page})
    elif set(data) != {"text/html"} or PLOTLY_START not in data["text/html"][:1000]:
        output.display(data)


def plotly_page(chart, is_whole):
    from plotly.io import to_html

    figure = {name: chart[name] for name in ("data", "layout", "frames") if name in chart}
    return to_html(figure, config=chart.get("config"), auto_play=False, include_plotlyjs=is_whole or "cdn", validate=False)


def show_bokeh(output):
    """Has Bokeh show charts as displays, whether or not the program asks for a notebook's."""
    from bokeh.io.notebook import install_notebook_hook, show_app
    from bokeh.io.state import curstate

    def show(chart, _state, _handle=None):
        from bokeh.embed import file_html
        from bokeh.resources import CDN, INLINE

        page = file_html(chart, INLINE if output.takes_library() else CDN, BOKEH_TITLE)
        kind = type(chart)
        name = f"<{kind.__module__}.{kind.__qualname__} object>"
        output.display({"text/html": page, "text/plain": name})

    install_notebook_hook("jupyter", lambda *_program: None, show, show_app, overwrite=True)
    curstate().output_notebook("jupyter")


def show_altair(altair):
    """Has Altair show a picture beside its page, which loads its program from the Internet."""
    page = altair.renderers.get()

    def render(spec, **options):
        bundle = page(spec, **options)
        picture = draw(spec)
        return {**bundle, "image/png": picture} if picture else bundle

    altair.renderers.register("default", render)
    altair.renderers.enable("default")


def draw(spec):
    command = [sys.executable, "-I", "-c", DRAW]
    try:
        drawn = subprocess.run(command, input=json.dumps(spec).encode(), capture_output=True, timeout=MAX_SECONDS)
    except (OSError, TypeError, ValueError, subprocess.SubprocessError):
        return None  # the page is there all the same
    return drawn.stdout if drawn.returncode == 0 else None
