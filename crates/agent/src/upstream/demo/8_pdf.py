from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.platypus import Image, KeepTogether, PageBreak, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

ink, blue, pale = colors.HexColor(INK), colors.HexColor(BLUE), colors.HexColor("#f1f5f9")
body = ParagraphStyle("body", fontName="Helvetica", fontSize=10, leading=15, textColor=ink, spaceAfter=6)
small = ParagraphStyle("small", parent=body, fontSize=8.5, leading=12, textColor=colors.HexColor("#64748b"))
h1 = ParagraphStyle("h1", parent=body, fontName="Helvetica-Bold", fontSize=24, leading=30, spaceAfter=4)
h2 = ParagraphStyle("h2", parent=body, fontName="Helvetica-Bold", fontSize=15, leading=20, spaceBefore=6, spaceAfter=8)
figure = ParagraphStyle("figure", parent=body, fontName="Helvetica-Bold", fontSize=17, leading=21, textColor=blue, alignment=1)
caption = ParagraphStyle("caption", parent=small, alignment=1)
WIDTH = A4[0] - 40 * mm - 12  # the page less its margins and the frame's own padding

def picture(path):
    image = Image(path)
    image.drawHeight *= WIDTH / image.drawWidth
    image.drawWidth = WIDTH
    return image

def table(head, rows, widths, left=1):
    grid = Table([head] + rows, colWidths=[WIDTH * width for width in widths], repeatRows=1)
    grid.setStyle(TableStyle([
        ("FONT", (0, 0), (-1, -1), "Helvetica", 9), ("FONT", (0, 0), (-1, 0), "Helvetica-Bold", 9),
        ("TEXTCOLOR", (0, 0), (-1, -1), ink), ("TEXTCOLOR", (0, 0), (-1, 0), colors.white), ("BACKGROUND", (0, 0), (-1, 0), ink),
        ("ROWBACKGROUNDS", (0, 1), (-1, -1), [colors.white, pale]), ("ALIGN", (left, 0), (-1, -1), "RIGHT"),
        ("VALIGN", (0, 0), (-1, -1), "MIDDLE"), ("TOPPADDING", (0, 0), (-1, -1), 5), ("BOTTOMPADDING", (0, 0), (-1, -1), 5),
    ]))
    return grid

def footer(canvas, document):
    canvas.setFont("Helvetica", 8)
    canvas.setFillColor(colors.HexColor("#64748b"))
    canvas.drawString(20 * mm, 12 * mm, "Q1 2026 sales report")
    canvas.drawRightString(A4[0] - 20 * mm, 12 * mm, f"Page {document.page}")

revenue, orders = monthly["revenue"].sum(), int(monthly["orders"].sum())
conversion = funnel["of all"].iloc[-1]
best = monthly["revenue"].idxmax()
weakest = funnel["of previous"].idxmin()
figures = Table(
    [[Paragraph(value, figure) for value in (f"{revenue / 1e3:,.0f} k", f"{orders:,}", f"{sales['amount'].mean():,.0f}", f"{conversion:.1%}")],
     [Paragraph(name, caption) for name in ("revenue", "orders", "average order", "sessions that buy")]],
    colWidths=[WIDTH / 4] * 4, rowHeights=[30, 18])
figures.setStyle(TableStyle([("BACKGROUND", (0, 0), (-1, -1), pale), ("VALIGN", (0, 0), (-1, -1), "MIDDLE")]))

story = [
    Paragraph("Q1 2026 sales report", h1),
    Paragraph(f"{df['date'].min():%d %B %Y} to {df['date'].max():%d %B %Y} · {len(df):,} events of {df['session_id'].nunique():,} sessions", small),
    Spacer(1, 6 * mm), figures, Spacer(1, 8 * mm),
    Paragraph("Summary", h2),
    Paragraph(f"The best month was <b>{best.strftime('%B')}</b> with {monthly.loc[best, 'revenue'] / 1e3:,.0f} k, "
              f"{monthly['change'].iloc[-1]:+.1%} against the month before. "
              f"The ten strongest products bring <b>{top10['share'].sum():.0%}</b> of the revenue; "
              f"{counts.get('A', 0)} of {len(products)} products (class A) bring the first 80 %.", body),
    Paragraph(f"Of all sessions <b>{conversion:.1%}</b> end in a purchase. The largest loss is before <b>{weakest}</b>: "
              f"only {funnel.loc[weakest, 'of previous']:.0%} of the sessions of the step before get there.", body),
    Paragraph("Quality of the data", h2),
    table(["Check", "Rows"], [[name, f"{count:,}"] for name, count in quality.items()], [0.8, 0.2]),
    PageBreak(),
    Paragraph("Monthly dynamics", h2), picture("monthly.png"), Spacer(1, 4 * mm),
    table(["Month", "Revenue", "Orders", "Average order", "Change"],
          [[label, f"{row.revenue:,.2f}", f"{row.orders:,}", f"{row.average_order:,.2f}", "–" if pd.isna(row.change) else f"{row.change:+.1%}"]
           for label, row in zip(labels, monthly.itertuples())], [0.24, 0.24, 0.16, 0.2, 0.16]),
    PageBreak(),
    Paragraph("Products", h2), picture("pareto.png"), Spacer(1, 4 * mm),
    table(["Top 10", "Revenue", "Orders", "Share", "Class"],
          [[row.Index, f"{row.revenue:,.2f}", f"{row.orders:,}", f"{row.share:.1%}", row.abc] for row in top10.itertuples()],
          [0.4, 0.22, 0.14, 0.13, 0.11]),
    PageBreak(),
    Paragraph("Conversion funnel", h2), picture("funnel.png"), Spacer(1, 4 * mm),
    table(["Stage", "Sessions", "Of previous", "Of all"],
          [[stage.capitalize(), f"{row['sessions']:,.0f}", "–" if pd.isna(row["of previous"]) else f"{row['of previous']:.1%}", f"{row['of all']:.1%}"]
           for stage, row in funnel.iterrows()], [0.34, 0.22, 0.22, 0.22]),
    Spacer(1, 8 * mm),
    KeepTogether([
        Paragraph("Method", h2),
        Paragraph("Revenue is the sum of the amounts of purchase events after cleaning; an order is a session with a purchase. Duplicate "
                  "rows count once, product names are compared without case and outer spaces. A product belongs to class A when the revenue "
                  "of all stronger products is below 80 % of the total, to B below 95 %, else to C. A session reached a stage when it has "
                  "at least one event of it.", body),
    ]),
]
SimpleDocTemplate("report.pdf", pagesize=A4, leftMargin=20 * mm, rightMargin=20 * mm, topMargin=18 * mm, bottomMargin=20 * mm,
                  title="Q1 2026 sales report", author="Aludel").build(story, onFirstPage=footer, onLaterPages=footer)

from pypdf import PdfReader
pages = len(PdfReader("report.pdf").pages)
print(f"report.pdf: {pages} pages")
print("FIGURES", json.dumps({"pages": pages, "revenue": round(float(revenue), 2), "orders": orders, "conversion": round(float(conversion), 4)}))
