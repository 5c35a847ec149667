products = (
    sales.groupby("product").agg(revenue=("amount", "sum"), orders=("session_id", "nunique"))
    .sort_values("revenue", ascending=False)
)
products["share"] = products["revenue"] / products["revenue"].sum()
products["cumulative"] = products["share"].cumsum()
# A product belongs to the class in which its revenue begins.
start = products["cumulative"] - products["share"]
products["abc"] = pd.cut(start, [-0.01, 0.8, 0.95, 1.01], labels=["A", "B", "C"], right=False).astype(str)
top10 = products.head(10)

colour = {"A": BLUE, "B": AMBER, "C": PALE}
fig, ax = plt.subplots(figsize=(8, 4.6))
positions = range(1, len(products) + 1)
ax.bar(positions, products["revenue"], color=[colour[name] for name in products["abc"]], width=0.85)
ax.yaxis.set_major_formatter(money)
ax.set_xlabel("Products, by revenue")
ax.set_xlim(0.3, len(products) + 0.7)
line = ax.twinx()
line.plot(positions, products["cumulative"], color=INK, linewidth=1.6)
line.set_ylim(0, 1.05)
line.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
line.spines["top"].set_visible(False)
for level in (0.8, 0.95):
    line.axhline(level, color=INK, linewidth=0.6, linestyle=(0, (4, 4)), alpha=0.5)
counts = products["abc"].value_counts()
handles = [plt.Rectangle((0, 0), 1, 1, color=colour[name]) for name in "ABC"]
ax.legend(handles, [f"{name}: {counts.get(name, 0)} products, {products.loc[products['abc'] == name, 'share'].sum():.0%} of revenue"
                    for name in "ABC"], loc="center right", frameon=False, fontsize=9)
ax.set_title("Pareto and ABC classes of products")
fig.tight_layout()
fig.savefig("pareto.png")
plt.show()

print(top10.round(3).to_string())
print(f"\n{len(products)} products; A: {counts.get('A', 0)}, B: {counts.get('B', 0)}, C: {counts.get('C', 0)}")
print("FIGURES", json.dumps({
    "products": len(products),
    "abc": {name: int(counts.get(name, 0)) for name in "ABC"},
    "top10": [{"product": row.Index, "revenue": round(row.revenue, 2), "share": round(row.share, 4)} for row in top10.itertuples()],
    "top10_share": round(float(top10["share"].sum()), 4),
}))
