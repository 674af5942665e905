// A product says itself that the matrix unit makes it; its second operand then comes in groups of rows, and only then.
// RUN: tessera opt %s | filecheck %s
func.func @product(%a: vector<16x32xbf16>, %b: vector<16x16x2xbf16>, %acc: vector<16x16xf32>) -> vector<16x16xf32> {
  %c = "tessera.tile.mma_sync"(%a, %b, %acc) {m = 16, n = 16, k = 32, dtype = "bf16", matrix_unit}
    : (vector<16x32xbf16>, vector<16x16x2xbf16>, vector<16x16xf32>) -> vector<16x16xf32>
  func.return %c : vector<16x16xf32>
}
// CHECK: dtype = "bf16", matrix_unit} : (vector<16x32xbf16>, vector<16x16x2xbf16>, vector<16x16xf32>) -> vector<16x16xf32>
