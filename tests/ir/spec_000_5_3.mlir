// Spec 000, 5.3: tile sizes with the cost model that chose them. Only types were added.
// RUN: tessera opt %s | filecheck %s
func.func @snippet(%0: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %1 = "tessera.schedule.tile"(%0)
         {tile_sizes = [128, 128, 32], cost_model = "roofline"} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %1 : tensor<?x?xf32>
}
// CHECK: "tessera.schedule.tile"(%{{.*}}) {tile_sizes = [128 : i64, 128 : i64, 32 : i64], cost_model = "roofline"} : (tensor<?x?xf32>) -> tensor<?x?xf32>
