// Infinities and NaN print as bit patterns, and are read back as such, not as large numbers.
// RUN: tessera opt %s | filecheck %s
func.func @constants() {
  %low = arith.constant dense<0xFF800000> : vector<4xf32>
  %mixed = arith.constant dense<[0x7FC00000, 1.0]> : vector<2xf32>
  %half = arith.constant dense<0x7C00> : vector<4xf16>
  %integer = arith.constant dense<0x10> : vector<4xi32>
  func.return
}
// CHECK: %low = arith.constant dense<0xff800000> : vector<4xf32>
// CHECK-NEXT: %mixed = arith.constant dense<[0x7fc00000, 1.000000e+00]> : vector<2xf32>
// CHECK-NEXT: %half = arith.constant dense<0x7c00> : vector<4xf16>
// CHECK-NEXT: %integer = arith.constant dense<16> : vector<4xi32>
