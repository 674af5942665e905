// Groups of rows are the matrix unit's: a product over them that does not ask for it is refused.
// RUN: not tessera opt %s 2>&1 | filecheck %s
func.func @product(%a: vector<16x32xbf16>, %b: vector<16x16x2xbf16>, %acc: vector<16x16xf32>) -> vector<16x16xf32> {
  %c = "tessera.tile.mma_sync"(%a, %b, %acc) {m = 16, n = 16, k = 32, dtype = "bf16"}
    : (vector<16x32xbf16>, vector<16x16x2xbf16>, vector<16x16xf32>) -> vector<16x16xf32>
  func.return %c : vector<16x16xf32>
}
// CHECK: matrix_unit goes with groups of rows in b
