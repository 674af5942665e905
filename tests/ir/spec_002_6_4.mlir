// Spec 002, 6.4: the matrix operation. Types were added, and the result got a name of its own: the spec assigns %fragC
// to itself, which SSA does not allow.
// RUN: tessera opt %s | filecheck %s
func.func @snippet(
    %fragA: vector<16x16xbf16>, %fragB: vector<16x16xbf16>, %fragC: vector<16x16xf32>) -> vector<16x16xf32> {
  %fragD = "tessera.tile.mma_sync"(%fragA, %fragB, %fragC)
            {m=16, n=16, k=16, dtype="bf16"}
            : (vector<16x16xbf16>, vector<16x16xbf16>, vector<16x16xf32>) -> vector<16x16xf32>
  func.return %fragD : vector<16x16xf32>
}
// CHECK: %fragD = "tessera.tile.mma_sync"(%fragA, %fragB, %fragC) {m = 16 : i64, n = 16 : i64, k = 16 : i64, dtype = "bf16"} : (vector<16x16xbf16>, vector<16x16xbf16>, vector<16x16xf32>) -> vector<16x16xf32>
