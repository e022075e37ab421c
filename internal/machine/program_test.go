// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestProgramReplaced checks that a replaced QEMU is queried again.
func TestProgramReplaced(t *testing.T) {
	t.Parallel()
	path := framework.QEMUScript(t, "case $1 in "+framework.QEMUQueryCases+" esac")
	p := Program{Name: path}
	got, err := p.MachineType(t.Context(), "")
	assert.True(t, err == nil && got == "pc-q35-7.2", "got %s, %v", got, err)
	got, err = p.MachineType(t.Context(), "pc-q35-6.2")
	assert.True(t, err == nil && got == "pc-q35-6.2", "got %s, %v", got, err)
	assert.NoError(t, os.Rename(framework.QEMUScript(t, `case $1 in --version) echo version 9.9;; *) echo 'q35  PC (alias of pc-q35-9.9)';; esac`), path))
	got, err = p.MachineType(t.Context(), "")
	assert.True(t, err == nil && got == "pc-q35-9.9", "got %s, %v", got, err)
	wantError(t, assert.ErrorOf(p.MachineType(t.Context(), "pc-q35-6.2")), ErrMachineTypeLost, "its newest is pc-q35-9.9")
	assert.NoError(t, os.Remove(path)) // as for a moment of an upgrade
	assert.NoError(t, p.Check(t.Context()))
	wantError(t, assert.ErrorOf(p.MachineType(t.Context(), "")), ErrMachineTypes, "asking", "no such file")
}

// TestMachineTypesOfQEMU checks that the list of the installed QEMU is understood.
func TestMachineTypesOfQEMU(t *testing.T) {
	t.Parallel()
	framework.QEMUBinary(t)
	p := Program{Name: DefaultProgram}
	newest, err := p.MachineType(t.Context(), "")
	assert.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), DefaultProgram, "-nodefaults", "-machine", newest+",help").CombinedOutput()
	assert.True(t, err == nil && strings.Contains(string(out), "vmport"), "%s is not a machine type of it: %v, %.200s", newest, err, out)
	got, err := p.MachineType(t.Context(), newest)
	assert.True(t, err == nil && got == newest, "got %s, %v", got, err)
}

// TestVersion checks that the version of any QEMU is reported, and that of another program
// is not taken for one.
func TestVersion(t *testing.T) {
	t.Parallel()
	framework.QEMUBinary(t)
	p := Program{Name: DefaultProgram}
	got, err := p.Version(t.Context())
	assert.True(t, err == nil && regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(got), "of the installed one: %q, %v", got, err)
	for text, want := range map[string]string{
		"QEMU emulator version 6.1.50 (Debian 1:6)": "6.1.50",
		"QEMU emulator version 10.0":                "10.0",
		"GNU bash 5":                                "",
	} {
		p := Program{Name: framework.QEMUScript(t, "echo '"+text+"'")}
		got, err := p.Version(t.Context())
		assert.True(t, got == want && (err == nil) == (want != ""), "%s: got %q, %v", text, got, err)
	}
	none := Program{Name: "qemu-of-nowhere"}
	wantError(t, assert.ErrorOf(none.Version(t.Context())), ErrProgram, "is not installed")
}

// TestLandlock checks that a program that does not run confined says why.
func TestLandlock(t *testing.T) {
	t.Parallel()
	p := ownProgram(framework.QEMUScript(t, "exit 0"))
	abi, err := p.Landlock(t.Context())
	assert.True(t, abi == 0 && err != nil, "of a script: %d, %v", abi, err)
	framework.QEMUBinary(t)
	p = ownProgram(DefaultProgram)
	abi, err = p.Landlock(t.Context())
	assert.True(t, abi == confine.ABI() && (err == nil) == (abi > 0), "of QEMU: %d, %v, and the kernel has %d", abi, err, confine.ABI())
}
