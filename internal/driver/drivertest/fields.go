// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"slices"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// testFieldsDeclared checks that the driver declares every field of ServerSpec, and no
// other.
func testFieldsDeclared(t *testing.T, e *env) {
	declared := e.supportedFields(t)
	known := driver.SpecFields()
	for _, name := range known {
		assert.True(t, declared[name] != "", "the driver does not declare what it does with %s: a server would silently lack it", name)
	}
	for name := range declared {
		assert.True(t, slices.Contains(known, name), "the driver declares %s, which no spec has", name)
	}
}

func (e *env) supportedFields(t *testing.T) map[string]driver.Support {
	t.Helper()
	declarer, ok := driver.As[driver.FieldDeclarer](e.driver)
	assert.Require(t, ok, "the driver does not implement driver.FieldDeclarer")
	return declarer.SupportedFields()
}

// fieldChanges change one field each. The fields below image and volumes are only for
// drivers that do not support them: their valid values depend on the engine.
var fieldChanges = map[string]func(*driver.ServerSpec){
	"resource.cpu":    func(s *driver.ServerSpec) { s.CPUMilli *= 2 },
	"resource.memory": func(s *driver.ServerSpec) { s.MemoryBytes *= 2 },
	"ports.port": func(s *driver.ServerSpec) {
		s.Ports = append(s.Ports, driver.Port{Name: "extra", Protocol: "TCP", Port: 4242})
	},
	"sshAuthorizedKeys": func(s *driver.ServerSpec) { s.SSHKeys = []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA== test"} },
	"userData":          func(s *driver.ServerSpec) { s.UserData = driver.NewSecret("#cloud-config\n") },
	"networkData":       func(s *driver.ServerSpec) { s.NetworkData = driver.NewSecret("version: 2\n") },
	"command":           func(s *driver.ServerSpec) { s.Command = []string{"/bin/other", "argument"} },
	"args":              func(s *driver.ServerSpec) { s.Args = []string{"-c", "true"} },
	"env.name":          func(s *driver.ServerSpec) { s.Env = append(slices.Clone(s.Env), envVar("EXTRA", "")) },
	"env.value":         func(s *driver.ServerSpec) { s.Env = []driver.EnvVar{envVar("NAME", "another value")} },
	"workingDir":        func(s *driver.ServerSpec) { s.WorkingDir = "/tmp" },

	"image.checksum":      func(s *driver.ServerSpec) { s.Image.Checksum = "sha256:" + strings.Repeat("0", 64) },
	"image.kernel.source": func(s *driver.ServerSpec) { s.Image.Kernel = &driver.Kernel{Source: "/vmlinuz"} },
	"volumes.name": func(s *driver.ServerSpec) {
		s.Volumes = append(s.Volumes, driver.Volume{Name: "extra", SizeBytes: 1 << 20})
	},
}

func envVar(name, value string) driver.EnvVar {
	return driver.EnvVar{Name: name, Value: driver.NewSecret(value)}
}

// testFieldsUnsupported checks that a field which the driver declares as unsupported is
// refused by its name.
func testFieldsUnsupported(t *testing.T, e *env) {
	declared := e.supportedFields(t)
	for name, change := range fieldChanges {
		if declared[name] != driver.Unsupported {
			continue
		}
		spec := e.newSpec(t, "unsupported")
		change(&spec)
		top, _, _ := strings.Cut(name, ".")
		wantKind(t, "Ensure with "+name, driver.ErrUnsupported, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), spec)) }, top)
	}
}

// testFieldsPending checks that Pending lists the changed fields that the driver declares
// as applied at a restart, and no others.
func testFieldsPending(t *testing.T, e *env) {
	declared := e.supportedFields(t)
	spec := e.newSpec(t, "changed")
	if e.runsCommands(declared) {
		spec.Env = []driver.EnvVar{envVar("NAME", "value")}
	}
	first := e.ensureState(t, spec, driver.StateRunning)
	for name, change := range fieldChanges {
		support := declared[name]
		if support == driver.Unsupported || strings.HasPrefix(name, "image.") || strings.HasPrefix(name, "volumes.") || e.IsDisk && isOfCommand(name) {
			continue
		}
		changed := spec
		change(&changed)
		s := e.ensureState(t, changed, driver.StateRunning)
		wantSameRun(t, s, first)
		got, want := pendingCovers(s.Pending, name), support == driver.AppliedAtRestart
		assert.True(t, got == want, "%s is declared as applied %s, and after a change Pending is %v", name, support, s.Pending)
	}
}

// testFieldsOfCommand checks that environment and working directory reach a server with its next run, are
// not pending then, and that the value of a variable, which may be a Secret's, is not shown. A guest runs
// whatever they are.
func testFieldsOfCommand(t *testing.T, e *env) {
	if !e.runsCommands(e.supportedFields(t)) {
		t.Skip("the image lacks a command")
	}
	mark := "s3cr3t-" + string(newUID())
	spec := e.newSpec(t, "command")
	spec.Env = []driver.EnvVar{envVar("FIRST", mark), envVar("SECOND.2 <>", "\n\"'=$(FIRST)\\ 漢"), envVar("EMPTY", "")}
	spec.WorkingDir = "/"
	first := e.ensureState(t, spec, driver.StateRunning)
	slices.Reverse(spec.Env)
	s := e.ensureState(t, spec, driver.StateRunning)
	wantSameRun(t, s, first)
	for _, change := range []func(*driver.ServerSpec){
		func(*driver.ServerSpec) {},
		func(s *driver.ServerSpec) { s.Env = []driver.EnvVar{envVar("FIRST", mark+" another")} },
		func(s *driver.ServerSpec) { s.Env, s.WorkingDir = nil, "" },
	} {
		change(&spec)
		run := s.Run
		s = e.ensureNewRun(t, e.restartSpec(spec, run, e.clock.Now()), run)
		assert.True(t, len(s.Pending) == 0, "after a restart Pending is %v", s.Pending)
		wantConcealed(t, "the server", s, mark)
		wantConcealed(t, "the servers listed", listServers(t, e.driver), mark)
	}
	spec.Env = []driver.EnvVar{envVar("FIRST", mark)}
	wantConcealed(t, "the error for a bad spec", e.ensureInvalid(t, spec), mark)
}

// runsCommands reports whether the fields of a command are for the image of the suite.
func (e *env) runsCommands(declared map[string]driver.Support) bool {
	return declared["env.value"] != driver.Unsupported && !e.IsDisk
}

// isOfCommand reports whether a field says what a container image runs.
func isOfCommand(name string) bool {
	top, _, _ := strings.Cut(name, ".")
	return slices.Contains([]string{"command", "args", "env", "workingDir"}, top)
}

// pendingCovers reports whether Pending names a field, or one that the field is part of.
func pendingCovers(pending []string, name string) bool {
	return slices.ContainsFunc(pending, func(p string) bool { return p == name || strings.HasPrefix(name, p+".") })
}
