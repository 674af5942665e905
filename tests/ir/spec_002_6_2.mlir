// Spec 002, 6.2: the tiled matrix product. Only types were added.
// RUN: tessera opt %s | filecheck %s
func.func @snippet(%A: tensor<?x?xbf16>, %B: tensor<?x?xbf16>) -> tensor<?x?xf32> {
  %0 = "tessera.schedule.tile"(%A, %B)
         {m=128, n=128, k=64, autotune=true} : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xf32>
  func.return %0 : tensor<?x?xf32>
}
// CHECK: "tessera.schedule.tile"(%A, %B) {m = 128 : i64, n = 128 : i64, k = 64 : i64, autotune = true} : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xf32>
