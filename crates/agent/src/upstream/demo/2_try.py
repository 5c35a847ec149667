df = raw.copy()
df["date"] = pd.to_datetime(df["date"], format="%Y-%m-%d")
df["amount"] = df["amount"].astype(float)
print(df.groupby(df["date"].dt.to_period("M"))["amount"].sum())
