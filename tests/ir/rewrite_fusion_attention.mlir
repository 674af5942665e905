// Attention is a kernel of its own: maps before and after it, and a cast of its result, are others.
// RUN: tessera opt --pass-pipeline=fuse-kernels %s | filecheck %s
func.func @around(%q: tensor<?x?x?xf32>, %k: tensor<?x?x?xf32>, %v: tensor<?x?x?xf32>, %scale: tensor<f32>,
                  %mask: tensor<?x1xi1>) -> tensor<?x?x?xbf16> {
  %0 = "tessera.graph.neg"(%q) : (tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %1 = "tessera.graph.flash_attention"(%0, %k, %v, %scale, %mask) {causal = true}
    : (tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<f32>, tensor<?x1xi1>) -> tensor<?x?x?xf32>
  %2 = "tessera.graph.cast"(%1) : (tensor<?x?x?xf32>) -> tensor<?x?x?xbf16>
  func.return %2 : tensor<?x?x?xbf16>
}
// Queries, keys, sizes of keys and of values have names of their own, and so do the heads of Q and those of K and V.
// CHECK-LABEL: func.func @around
// CHECK-SAME: argument_dims = {{\[\[}}"s0", "s1", "s2"], ["s3", "s4", "s2"], ["s3", "s4", "s5"], [], ["s1", "1"]]
// CHECK: sym_name = "neg_0", family = "row"
// CHECK: "tessera.graph.flash_attention"
// CHECK-NEXT: "tessera.schedule.yield"
// CHECK-NEXT: sym_name = "flash_attention_1", family = "attention", {{.*}}domain = ["s0", "s1", "s5"]
// CHECK: sym_name = "cast_2", family = "row"
