def sheet(writer, name, table, formats, widths):
    table.to_excel(writer, sheet_name=name, index=False, startrow=1, header=False)
    page = writer.sheets[name]
    for column, title in enumerate(table.columns):
        page.write(0, column, title, header)
        page.set_column(column, column, widths[column], formats[column])
    page.freeze_panes(1, 0)
    page.autofilter(0, 0, len(table), len(table.columns) - 1)
    return page

with pd.ExcelWriter("report.xlsx", engine="xlsxwriter") as writer:
    book = writer.book
    header = book.add_format({"bold": True, "font_color": "white", "bg_color": INK, "border": 0, "align": "left", "valign": "vcenter"})
    text, whole = book.add_format(), book.add_format({"num_format": "#,##0"})
    cents, percent = book.add_format({"num_format": "#,##0.00"}), book.add_format({"num_format": "0.0%"})

    summary = pd.DataFrame([
        ("Revenue", monthly["revenue"].sum()), ("Orders", monthly["orders"].sum()), ("Average order", sales["amount"].mean()),
        ("Products sold", len(products)), ("Sessions", funnel["sessions"].iloc[0]), ("Conversion, %", 100 * funnel["of all"].iloc[-1]),
    ], columns=["Figure", "Value"])
    sheet(writer, "Summary", summary, [text, cents], [26, 18])

    table = monthly.reset_index(names="Month").assign(Month=labels)
    table.columns = ["Month", "Revenue", "Orders", "Average order", "Change"]
    page = sheet(writer, "Monthly", table, [text, cents, whole, cents, percent], [14, 16, 10, 15, 10])
    chart = book.add_chart({"type": "column"})
    chart.add_series({"name": "Revenue", "categories": ["Monthly", 1, 0, len(table), 0], "values": ["Monthly", 1, 1, len(table), 1],
                      "fill": {"color": BLUE}, "gap": 80})
    chart.set_title({"name": "Revenue by month"})
    chart.set_legend({"none": True})
    page.insert_chart("G2", chart)

    table = top10.reset_index()[["product", "revenue", "orders", "share"]]
    table.columns = ["Product", "Revenue", "Orders", "Share"]
    page = sheet(writer, "Top products", table, [text, cents, whole, percent], [30, 16, 10, 10])
    chart = book.add_chart({"type": "bar"})
    chart.add_series({"name": "Revenue", "categories": ["Top products", 1, 0, 10, 0], "values": ["Top products", 1, 1, 10, 1],
                      "fill": {"color": BLUE}, "gap": 40})
    chart.set_y_axis({"reverse": True})
    chart.set_legend({"none": True})
    chart.set_title({"name": "Top 10 products"})
    page.insert_chart("F2", chart, {"x_scale": 1.2, "y_scale": 1.3})

    table = products.reset_index()[["product", "revenue", "share", "cumulative", "abc"]]
    table.columns = ["Product", "Revenue", "Share", "Cumulative", "Class"]
    sheet(writer, "ABC", table, [text, cents, percent, percent, text], [30, 16, 10, 12, 8])

    table = funnel.reset_index()
    table.columns = ["Stage", "Sessions", "Of previous", "Of all"]
    sheet(writer, "Funnel", table, [text, whole, percent, percent], [14, 12, 13, 10])

    table = pd.DataFrame(list(quality.items()), columns=["Check", "Rows"])
    sheet(writer, "Data quality", table, [text, whole], [58, 12])

from openpyxl import load_workbook
names = load_workbook("report.xlsx", read_only=True).sheetnames
print("report.xlsx:", ", ".join(names))
print("FIGURES", json.dumps({"sheets": len(names)}))
