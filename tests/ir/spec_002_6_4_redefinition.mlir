// Spec 002, 6.4 to the letter assigns %fragC to itself: refused, with both places.
// RUN: not tessera opt %s 2>&1 | filecheck %s
func.func @snippet(%fragA: vector<16x16xbf16>, %fragB: vector<16x16xbf16>, %fragC: vector<16x16xf32>) {
  %fragC = "tessera.tile.mma_sync"(%fragA, %fragB, %fragC)
            {m=16, n=16, k=16, dtype="bf16"}
            : (vector<16x16xbf16>, vector<16x16xbf16>, vector<16x16xf32>) -> vector<16x16xf32>
  func.return
}
// CHECK: E_IR: {{.*}}spec_002_6_4_redefinition.mlir:4:3: SSA value %fragC is already defined
// CHECK-NEXT: %fragC = "tessera.tile.mma_sync"
// CHECK-NEXT: ^^^^^^
