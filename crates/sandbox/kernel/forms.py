"""Further forms of what cells show: tables by column, and the data of charts, for clients that draw them themselves; and pictures that are saved.

Loaded by a kernel whose client wants them, and by no other.
"""

import datetime
import functools
import json
import math
import re
import sys

from kernel_shell import AfterImport

TABLE = "application/vnd.aludel.table+json"
CHART = "application/vnd.aludel.chart+json"
# Points of one chart, and rows of one table; what has more is shown as ever.
MAX_POINTS = 50_000
SCALES = ("linear", "log", "symlog", "logit", "function", "functionlog", "asinh")


def install(shell):
    """Adds the forms to a shell. Neither pandas nor matplotlib is imported for it."""
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    class Table(BaseFormatter):
        format_type = Unicode(TABLE)
        print_method = ObjectName("_repr_aludel_table_")
        _return_type = (dict, str)

        def __call__(self, value):
            pandas = sys.modules.get("pandas")
            if pandas is None or not isinstance(value, pandas.DataFrame) or value.size > MAX_POINTS:
                return None
            columns = value.to_dict(orient="list")
            return {str(name): [plain(cell) for cell in cells] for name, cells in columns.items()}

    class Chart(BaseFormatter):
        format_type = Unicode(CHART)
        print_method = ObjectName("_repr_aludel_chart_")
        _return_type = (dict, str)

        def __call__(self, value):
            figure = sys.modules.get("matplotlib.figure")
            if figure is None or not isinstance(value, figure.Figure):
                return None
            try:
                return chart_of_figure(value)
            except Exception:
                return None  # the picture is there all the same

    class Structure(BaseFormatter):
        format_type = Unicode("application/json")
        print_method = ObjectName("_repr_json_")
        _return_type = (list, dict, str)

        def __call__(self, value):
            if not isinstance(value, (list, dict)):
                return super().__call__(value)
            try:
                return json.loads(json.dumps(value, default=scalar, allow_nan=False))
            except (TypeError, ValueError, RecursionError):
                return None

    formatters = shell.display_formatter.formatters
    for formatter in (Table, Chart, Structure):
        made = formatter(parent=shell.display_formatter)
        formatters[made.format_type] = made
    if (pictures := sys.modules.get("PIL.Image")) is not None:
        show_saved(pictures)
    else:
        sys.meta_path.insert(0, AfterImport("PIL.Image", show_saved))


def show_saved(pictures):
    """Has pictures shown when a program saves them under a name, as clients of hosted interpreters know it."""
    kept = pictures.Image.save

    @functools.wraps(kept)
    def save(image, fp, format=None, **options):
        if isinstance(fp, str):
            from IPython.display import display

            display(image)
        kept(image, fp, format, **options)

    pictures.Image.save = save


def scalar(value):
    """A number of numpy's as JSON has it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError


def plain(value):
    """A cell or a coordinate as JSON has it."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def chart_of_figure(figure):
    if not any(axes.has_data() for axes in figure.axes):
        return {}
    charts = [chart_of_axes(axes) for axes in figure.axes]
    if len(charts) == 1:
        return charts[0]
    title = figure._suptitle.get_text() if figure._suptitle is not None else None
    return {"type": "superchart", "title": title or None, "elements": charts}


def chart_of_axes(axes):
    for kind, read in (("pie", pie), ("box_and_whisker", boxes), ("bar", bars), ("scatter", scatter), ("line", lines)):
        elements = read(axes) if kind == kind_of(axes) else None
        if elements is not None:
            break
    else:
        kind, elements = "unknown", []
    chart = {"type": kind, "title": axes.get_title() or None, "elements": elements}
    if kind in ("pie", "unknown"):
        return chart
    labels = [axes.get_xlabel(), axes.get_ylabel()]
    if is_lying(axes, kind):
        labels.reverse()  # as if it stood, which is how its elements are told
    for name, label in zip("xy", labels):
        chart[f"{name}_label"], chart[f"{name}_unit"] = label or None, unit(label)
    if kind in ("line", "scatter"):
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            scale = scale_of(axis)
            chart[f"{name}_ticks"] = [coordinate(axis, scale, tick) for tick in axis.get_ticklocs()]
            chart[f"{name}_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
            chart[f"{name}_scale"] = scale
    return chart


def kind_of(axes):
    """The kind of a chart by what is drawn in it; `unknown` where that is mixed."""
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch, Rectangle, Wedge

    drawn = [artist for artist in axes.get_children() if artist.get_visible()]
    patches = [artist for artist in drawn if artist is not axes.patch]
    has = {
        "pie": any(isinstance(artist, Wedge) for artist in patches),
        "box": any(isinstance(artist, PathPatch) for artist in patches),
        "bar": any(isinstance(artist, Rectangle) for artist in patches),
        "scatter": any(isinstance(artist, PathCollection) for artist in patches),
        "line": any(isinstance(artist, Line2D) for artist in patches),
    }
    found = {name for name, there in has.items() if there}
    if found == {"box", "line"}:
        return "box_and_whisker"
    if len(found) > 1 and all(is_mark(artist) for artist in patches if isinstance(artist, Line2D)):
        found.discard("line")
    if len(found) == 1 and found <= {"pie", "bar", "scatter", "line"}:
        return found.pop()
    return "unknown"


def is_mark(line):
    """Returns true for a line that is no data beside other kinds: across the chart, as of `axhline`, or the ends of error bars."""
    xs, ys = list(line.get_xdata()), list(line.get_ydata())
    crosses = len(xs) == 2 and (xs[0] == xs[1] or ys[0] == ys[1])
    return crosses or line.get_linestyle() == "None" and line.get_marker() in ("_", "|")


def is_lying(axes, kind):
    """Returns true for a chart of bars or boxes that lie."""
    if kind == "bar":
        return any(bars_lie(container) for container in axes.containers if hasattr(container, "patches"))
    return kind == "box_and_whisker" and not boxes_along(axes, 0)[1] and boxes_along(axes, 1)[1]


def unit(label):
    """The text in brackets of an axis' label."""
    found = re.search(r"[(\[]([^)\]]*)[)\]]", label or "")
    return found.group(1).strip() or None if found else None


def scale_of(axis):
    from matplotlib.category import StrCategoryConverter
    from matplotlib.dates import _SwitchableDateConverter

    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    if isinstance(converter, _SwitchableDateConverter):
        return "datetime"
    if isinstance(converter, StrCategoryConverter):
        return "categorical"
    name = axis.get_scale()
    return name if name in SCALES else "unknown"


def coordinate(axis, scale, value):
    """A place on an axis: a time where that shows times, a number otherwise."""
    if isinstance(value, (datetime.date, datetime.datetime)) or hasattr(value, "isoformat"):
        return value.isoformat()
    if scale == "datetime":
        from matplotlib.dates import num2date

        if type(value).__name__ == "datetime64":
            return str(value.astype("datetime64[s]"))
        return num2date(value).isoformat()
    return plain(value)


def points(axes, pairs):
    x_scale, y_scale = scale_of(axes.xaxis), scale_of(axes.yaxis)
    return [[coordinate(axes.xaxis, x_scale, x), coordinate(axes.yaxis, y_scale, y)] for x, y in pairs]


def label_of(artist, word, number):
    label = str(artist.get_label() or "")
    return f"{word} {number}" if not label or label.startswith("_") else label


def lines(axes):
    drawn = axes.get_lines()
    if sum(len(line.get_xdata()) for line in drawn) > MAX_POINTS:
        return None
    return [
        {"label": label_of(line, "Line", number), "points": points(axes, zip(line.get_xdata(), line.get_ydata()))}
        for number, line in enumerate(drawn)
    ]


def scatter(axes):
    drawn = axes.collections
    if sum(len(group.get_offsets()) for group in drawn) > MAX_POINTS:
        return None
    return [
        {"label": label_of(group, "Group", number), "points": points(axes, group.get_offsets().tolist())}
        for number, group in enumerate(drawn)
    ]


def bars_lie(container):
    """Returns true for bars that lie: their lengths differ and their heights do not."""
    heights = {bar.get_height() for bar in container}
    return len(heights) == 1 and any(bar.get_x() == 0 for bar in container) and getattr(container, "orientation", None) == "horizontal"


def reach_of_labels(axis):
    """The distance up to which a label names a bar: half of that between two labels where a program chose the labels, as for groups of
    bars, and next to nothing where they are numbers of the axis."""
    from matplotlib.category import StrCategoryLocator
    from matplotlib.ticker import FixedLocator, ScalarFormatter

    is_chosen = isinstance(axis.get_major_locator(), (FixedLocator, StrCategoryLocator))
    if not is_chosen or isinstance(axis.get_major_formatter(), ScalarFormatter):
        return 1e-6
    places = sorted(axis.get_ticklocs())
    return min((after - before for before, after in zip(places, places[1:])), default=1) / 2


def bars(axes):
    from matplotlib.container import BarContainer

    elements = []
    for number, container in enumerate(group for group in axes.containers if isinstance(group, BarContainer)):
        group = label_of(container, "Group", number)
        is_lying = bars_lie(container)
        axis = axes.yaxis if is_lying else axes.xaxis
        labels = {place: text.get_text() for place, text in zip(axis.get_ticklocs(), axis.get_ticklabels())}
        reach = reach_of_labels(axis)
        for bar in container:
            value = bar.get_width() if is_lying else bar.get_height()
            place = bar.get_y() + bar.get_height() / 2 if is_lying else bar.get_x() + bar.get_width() / 2
            near = min(labels, key=lambda tick: abs(tick - place), default=None)
            label = labels[near] if near is not None and abs(near - place) < reach else str(plain(place))
            elements.append({"label": label, "group": group, "value": plain(value)})
    return elements


def pie(axes):
    from matplotlib.patches import Wedge

    wedges = [artist for artist in axes.patches if isinstance(artist, Wedge)]
    return [
        {
            "label": wedge.get_label(),
            "angle": round(float(abs(wedge.theta2 - wedge.theta1)), 3),
            "radius": plain(wedge.r),
        }
        for wedge in wedges
    ]


def boxes(axes):
    """Boxes that stand, or else that lie."""
    standing, is_whole = boxes_along(axes, 0)
    if is_whole:
        return standing
    lying, is_whole = boxes_along(axes, 1)
    return lying if is_whole else standing


def boxes_along(axes, place):
    """Boxes from what is drawn: the corners of each, its median, and the whiskers and outliers at its place on one axis. Returns them, and
    true if each has a median."""
    from matplotlib import rcParams
    from matplotlib.patches import PathPatch

    labels = [text.get_text() for text in (axes.yaxis if place else axes.xaxis).get_ticklabels()]
    drawn = [artist for artist in axes.patches if isinstance(artist, PathPatch)]
    elements, is_whole = [], bool(drawn)
    for number, box in enumerate(drawn):
        corners = box.get_path().vertices
        places, values = corners[:, place], corners[:, 1 - place]
        left, right = float(min(places)), float(max(places))
        first, third = float(min(values)), float(max(values))
        median, ends, alone = None, [first, third], []
        for line in axes.get_lines():
            data = [[float(value) for value in values] for values in (line.get_xdata(), line.get_ydata())]
            xs, ys = data[place], data[1 - place]
            if not xs or not all(left <= x <= right for x in xs):
                continue
            if line.get_linestyle() == "None":
                is_mean = line.get_marker() == rcParams["boxplot.meanprops.marker"]
                alone.extend([] if is_mean else ys)
            elif len(set(xs)) == 1:
                ends.extend(ys)
            elif len(set(ys)) == 1 and (min(xs), max(xs)) == (left, right) and first <= ys[0] <= third:
                median = ys[0]
        elements.append(
            {
                "label": labels[number] if number < len(labels) else str(number + 1),
                "min": min(ends),
                "first_quartile": first,
                "median": median,
                "third_quartile": third,
                "max": max(ends),
                "outliers": [value for value in alone if not min(ends) <= value <= max(ends)],
            }
        )
        is_whole = is_whole and median is not None
    return elements, is_whole
