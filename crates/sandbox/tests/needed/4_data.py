import multiprocessing, sqlite3, zipfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import shared_memory

import duckdb
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

frame = pd.DataFrame({"a": np.arange(100), "b": list("xy") * 50})
frame.to_parquet("t.parquet"), pd.read_parquet("t.parquet"), frame.to_excel("t.xlsx"), pd.read_excel("t.xlsx")
frame.plot()
plt.show()
np.linalg.inv(np.random.rand(200, 200)), np.random.rand(3_000_000).tolist()
grown = bytearray(64 << 20)
grown.extend(bytes(1 << 20))
mapped = np.memmap("m", dtype="u1", mode="w+", shape=10)
mapped.flush()
connection = sqlite3.connect("t.db")
connection.execute("create table t (a)"), connection.execute("insert into t values (1)"), connection.commit()
with multiprocessing.Pool(2) as pool:
    pool.map(abs, [1, 2])
with multiprocessing.Manager() as manager:
    manager.dict()["a"] = 1
with ProcessPoolExecutor(2) as pool, ThreadPoolExecutor(2) as threads:
    list(pool.map(abs, [1])), list(threads.map(abs, [1]))
memory = shared_memory.SharedMemory(create=True, size=100)
memory.close(), memory.unlink()

from sklearn.ensemble import RandomForestClassifier

RandomForestClassifier(5, n_jobs=2).fit(np.random.rand(50, 2), [0, 1] * 25)
with zipfile.ZipFile("z.zip", "w") as archive:
    archive.write("t.xlsx")

import h5py

with h5py.File("/tmp/needed.h5", "w") as file:
    file["numbers"] = [1, 2, 3]

import geopandas
from shapely.geometry import box

areas = geopandas.GeoDataFrame({"name": ["a"]}, geometry=[box(0, 0, 1, 1)], crs="EPSG:4326")
for name in ["/tmp/areas.shp", "/tmp/areas.gpkg", "/tmp/areas.geojson"]:
    areas.to_file(name)
    assert len(geopandas.read_file(name).to_crs(3857)) == 1
