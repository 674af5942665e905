// A pass that does not exist is refused before anything runs, with the names of those that do.
// RUN: not tessera opt %s --pass-pipeline verify,fuze 2>&1 | filecheck %s
func.func @nothing() {
  func.return
}
// CHECK: E_ARGUMENT: there is no pass 'fuze'
// CHECK: hint: passes are {{.*}}strip-names, verify
