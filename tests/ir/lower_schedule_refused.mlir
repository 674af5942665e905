// A knob's value that no schedule has is told where it stands.
// RUN: not tessera opt %s --pass-pipeline lower-schedule{target=neoverse-n1} 2>&1 | filecheck %s
"tessera.schedule.kernel"() ({
^bb0(%x: memref<?xf32, strided<[1]>>, %y: memref<?xf32, strided<[1]>>):
  %value = "tessera.schedule.load"(%x) : (memref<?xf32, strided<[1]>>) -> f32
  "tessera.schedule.store"(%value, %y) : (f32, memref<?xf32, strided<[1]>>) -> ()
}) {sym_name = "copy", family = "map-reduce", arguments = [{axes = ["c"]}, {axes = ["c"]}], outer = [], lanes = "c",
    knobs = {tile = [1, 8], keep = 0, ahead = 3, nontemporal = false, parallel = "lanes", fusion = true}} : () -> ()
// CHECK: E_SCHEDULE_ILLEGAL: {{.*}}lower_schedule_refused.mlir:8:39: ahead = 3
// CHECK: hint: ahead is False, True, or like these
