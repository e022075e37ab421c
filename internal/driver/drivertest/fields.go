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

// testFieldsDeclared checks that the driver declares every field of ServerSpec, and only
// these.
func testFieldsDeclared(t *testing.T, e *env) {
	declared := e.supportedFields(t)
	known := driver.SpecFields()
	for _, name := range known {
		assert.True(t, declared[name] != "", "the driver does not declare what it does with %s: a server would silently lack it", name)
	}
	for name := range declared {
		assert.True(t, slices.Contains(known, name), "the driver declares %s, which is not a field of ServerSpec", name)
	}
}

func (e *env) supportedFields(t *testing.T) map[string]driver.Support {
	t.Helper()
	declarer, ok := driver.As[driver.FieldDeclarer](e.driver)
	assert.Require(t, ok, "the driver does not implement driver.FieldDeclarer")
	return declarer.SupportedFields()
}

// fieldChanges has a function for each field that changes its value. Values for image and
// volumes are valid for no engine: they are for drivers that do not support these fields.
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
	"user":              func(s *driver.ServerSpec) { s.User = "1234" },
	"init":              func(s *driver.ServerSpec) { s.Init = driver.InitDrover },
	"stdin":             func(s *driver.ServerSpec) { s.Stdin = true },
	"tty":               func(s *driver.ServerSpec) { s.TTY = true },
	"sysctls.name":      func(s *driver.ServerSpec) { s.Sysctls = []driver.Sysctl{{Name: "net.core.somaxconn", Value: "512"}} },

	"files.mountPath": func(s *driver.ServerSpec) {
		s.Files = append(slices.Clone(s.Files), driver.FileMount{MountPath: "/extra", Revision: "1"})
	},

	"image.checksum":      func(s *driver.ServerSpec) { s.Image.Checksum = "sha256:" + strings.Repeat("0", 64) },
	"image.kernel.source": func(s *driver.ServerSpec) { s.Image.Kernel = &driver.Kernel{Source: "/vmlinuz"} },
	"volumes.name": func(s *driver.ServerSpec) {
		s.Volumes = append(s.Volumes, driver.Volume{Name: "extra", SizeBytes: 1 << 20})
	},
}

func envVar(name, value string) driver.EnvVar {
	return driver.EnvVar{Name: name, Value: driver.NewSecret(value)}
}

// testFieldsUnsupported checks that Ensure refuses a field that the driver declares as
// unsupported, with an error that names the field.
func testFieldsUnsupported(t *testing.T, e *env) {
	declared := e.supportedFields(t)
	for name, change := range fieldChanges {
		if declared[name] != driver.Unsupported {
			continue
		}
		spec := e.newSpec(t, "unsupported")
		change(&spec)
		top, _, _ := strings.Cut(name, ".")
		wantErrorKind(t, "Ensure with "+name, driver.ErrUnsupported, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), spec)) }, top)
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
		if support == driver.Unsupported || strings.HasPrefix(name, "image.") || strings.HasPrefix(name, "volumes.") || (e.IsDisk && isCommandField(name)) {
			continue
		}
		changed := spec
		change(&changed)
		s := e.ensureState(t, changed, driver.StateRunning)
		wantSameRun(t, s, first)
		got, want := pendingCovers(s.Pending, name), support == driver.AppliedAtRestart
		assert.True(t, got == want, "%s is declared as %s, but Pending is %v after a change", name, support, s.Pending)
	}
}

// testFieldsOfCommand checks that a new environment and working directory are no longer pending after a restart,
// whatever their values, and that no error and no Server shows the value of a variable, which may be a Secret's.
func testFieldsOfCommand(t *testing.T, e *env) {
	if !e.runsCommands(e.supportedFields(t)) {
		t.Skip("the driver or the image does not support env and workingDir")
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

// runsCommands reports whether fields such as env apply to the image of Harness.Spec.
func (e *env) runsCommands(declared map[string]driver.Support) bool {
	return declared["env.value"] != driver.Unsupported && !e.IsDisk
}

// isCommandField reports whether a field configures the command that a container image runs.
func isCommandField(name string) bool {
	top, _, _ := strings.Cut(name, ".")
	return slices.Contains(driver.CommandFields, top)
}

// pendingCovers reports whether Pending names a field or one of its parents.
func pendingCovers(pending []string, name string) bool {
	return slices.ContainsFunc(pending, func(p string) bool { return p == name || strings.HasPrefix(name, p+".") })
}
