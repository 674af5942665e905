// Names of values are a convenience: without them, modules that differ in nothing else print alike.
// RUN: tessera opt %s --pass-pipeline strip-names,verify | filecheck %s
func.func @named(%x: f32, %y: f32) -> f32 {
  %total = arith.addf %x, %y : f32
  func.return %total : f32
}
// CHECK: func.func @named(%0: f32, %1: f32) -> f32
// CHECK-NEXT: %2 = arith.addf %0, %1 : f32
// CHECK-NEXT: func.return %2 : f32
