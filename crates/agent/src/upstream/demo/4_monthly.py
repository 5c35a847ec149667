import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter

INK, BLUE, PALE, GREEN, AMBER, RED = "#1f2937", "#2563eb", "#cbd5e1", "#059669", "#d97706", "#b91c1c"
plt.rcParams.update({
    "figure.dpi": 130, "font.size": 10, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": PALE,
    "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": 13, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 14,
})
money = FuncFormatter(lambda value, _: f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value / 1e3:.0f} k")

monthly = (
    sales.groupby(sales["date"].dt.to_period("M"))
    .agg(revenue=("amount", "sum"), orders=("session_id", "nunique"), average_order=("amount", "mean"))
)
monthly["change"] = monthly["revenue"].pct_change()
labels = [period.strftime("%B") for period in monthly.index]

fig, ax = plt.subplots(figsize=(8, 4.2))
bars = ax.bar(labels, monthly["revenue"], color=BLUE, width=0.55)
for bar, change, orders in zip(bars, monthly["change"], monthly["orders"]):
    middle = bar.get_x() + bar.get_width() / 2
    ax.annotate(f"{bar.get_height() / 1e3:,.0f} k", (middle, bar.get_height()), xytext=(0, 18),
                textcoords="offset points", ha="center", fontweight="bold")
    if pd.notna(change):
        ax.annotate(f"{change:+.1%}", (middle, bar.get_height()), xytext=(0, 5), textcoords="offset points",
                    ha="center", color=GREEN if change >= 0 else RED, fontsize=9)
    ax.annotate(f"{orders:,} orders", (middle, 0), xytext=(0, 8), textcoords="offset points", ha="center",
                color="white", fontsize=9)
ax.yaxis.set_major_formatter(money)
ax.grid(axis="y", color=PALE, linewidth=0.6)
ax.set_axisbelow(True)
ax.set_ylim(0, monthly["revenue"].max() * 1.18)
ax.set_title("Revenue by month, Q1 2026")
fig.tight_layout()
fig.savefig("monthly.png")
plt.show()

print(monthly.assign(change=monthly["change"].map("{:+.1%}".format, na_action="ignore").fillna("")).round(2).to_string())
print("FIGURES", json.dumps({"monthly": [
    {"month": label, "revenue": round(row.revenue, 2), "orders": int(row.orders), "change": None if pd.isna(row.change) else round(row.change, 4)}
    for label, row in zip(labels, monthly.itertuples())
]}))
