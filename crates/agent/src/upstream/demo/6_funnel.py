stages = ["view", "cart", "checkout", "purchase"]
reached = df.groupby("stage")["session_id"].nunique().reindex(stages, fill_value=0)
funnel = pd.DataFrame({"sessions": reached})
funnel["of previous"] = funnel["sessions"] / funnel["sessions"].shift()
funnel["of all"] = funnel["sessions"] / funnel["sessions"].iloc[0]

fig, ax = plt.subplots(figsize=(8, 3.9))
shades = ["#93c5fd", "#60a5fa", "#3b82f6", BLUE]
widest = funnel["sessions"].iloc[0]
for row, (stage, values) in enumerate(funnel.iterrows()):
    width = values["sessions"]
    ax.barh(row, width, left=(widest - width) / 2, color=shades[row], height=0.72)
    ax.text(-widest * 0.03, row - 0.13, stage.capitalize(), ha="right", va="center", fontweight="bold")
    ax.text(-widest * 0.03, row + 0.2, f"{width:,.0f} · {values['of all']:.1%}", ha="right", va="center", fontsize=9)
    if row:
        ax.text(widest * 1.02, row - 0.5, f"{values['of previous']:.1%} go on", va="center", fontsize=9)
ax.invert_yaxis()
ax.set_xlim(-widest * 0.24, widest * 1.18)
ax.axis("off")
ax.set_title("Conversion funnel, sessions")
fig.tight_layout()
fig.savefig("funnel.png")
plt.show()

print(funnel.to_string(formatters={"of previous": "{:.1%}".format, "of all": "{:.1%}".format}))
print("FIGURES", json.dumps({"funnel": {stage: int(count) for stage, count in reached.items()}}))
