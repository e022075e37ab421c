// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/driver/registry"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/engines"
)

// need says what Drover needs an engine for.
type need int

const (
	unneeded need = iota
	needed        // a driver was requested, or has run here
	lastHope      // --vm-driver is auto, and no other engine answers
)

// needOf returns the need of a driver's engine, which does not answer.
func (h *Host) needOf(name string, otherAnswers func() bool) need {
	named, err := registry.Parse(h.VMDriver)
	switch {
	case err == nil && slices.Contains(named, name):
		return needed
	case slices.ContainsFunc(h.Known, func(e engines.Engine) bool { return e.Driver == name }):
		return needed
	case h.VMDriver == registry.Auto && !otherAnswers():
		return lastHope
	}
	return unneeded
}

// absentEngine returns a finding about an engine that is missing: a note if nothing here needs it.
func absentEngine(n need, text, driverName string) findings.Finding {
	switch n {
	case needed:
		return findings.Error("%s", text).Means("The %s driver cannot run servers. Those that it has are unknown until then, and go on running.", driverName)
	case lastHope:
		return findings.Error("%s", text).Means("Neither Docker nor QEMU answers, and drover up does not start without one, unless --vm-driver names a driver.")
	default:
		return findings.Note("%s", text).Means("Nothing here needs it, unless you want to run VMs with driver %s.", driverName)
	}
}

// installCommand returns the command that installs packages on this distribution, "" for an
// unknown one.
func installCommand(debian, fedora string) string {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key != "ID" && key != "ID_LIKE" {
			continue
		}
		for id := range strings.FieldsSeq(strings.Trim(value, `"`)) {
			switch id {
			case "debian", "ubuntu":
				return "sudo apt-get install " + debian
			case "fedora", "rhel":
				return "sudo dnf install " + fedora
			}
		}
	}
	return ""
}

// qemuFacts are about the QEMU that machines run on.
type qemuFacts struct {
	need         need
	name         string
	version      string
	missing, err error
	refused      error // why root does not run it
	user         User
	asUser       string // the command that runs the checks as that user
	install      string
}

func gatherQEMU(ctx context.Context, h *Host) qemuFacts {
	f := qemuFacts{name: h.QEMU.Binary, install: installCommand("qemu-system-x86", "qemu-system-x86")}
	program, err := h.machineProgram(&launch.Users{})
	if err != nil {
		f.refused, f.user, f.asUser = err, h.User, fmt.Sprintf("sudo --user %s drover doctor --data-dir %s", datadir.SudoUser(h.User.ID), printable.ShellWord(string(h.Layout)))
		return f
	}
	if f.version, f.missing = program.Version(ctx); f.missing == nil {
		f.err = program.Check(ctx)
	}
	if f.missing != nil || f.err != nil {
		f.need = h.needOf(qemu.Name, func() bool { return gatherDockerEngine(ctx, h).isUsable() })
	}
	return f
}

func judgeQEMU(f qemuFacts) []findings.Finding {
	switch {
	case f.refused != nil && f.user.isRoot():
		return oneFinding(findings.Error("%v", f.refused).Means("Who can change it has all rights of root once Drover runs it.").
			FixedBy("name a QEMU by --qemu-binary that root alone can change"))
	case f.refused != nil:
		return oneFinding(findings.Note("%v", f.refused).Means("Whether machines run on it, and how they are confined, could not be checked.").
			FixedBy("run the checks as user %s", f.user.Name).FixedByCommand("%s", f.asUser))
	case f.missing != nil:
		return oneFinding(absentEngine(f.need, f.missing.Error(), qemu.Name).FixedBy("install QEMU %s or newer", machine.MinVersion).FixedByCommand("%s", f.install))
	case f.err != nil:
		return oneFinding(absentEngine(f.need, f.err.Error(), qemu.Name).FixedBy("install a newer QEMU, and name it by --qemu-binary"))
	}
	return oneFinding(findings.OK("%s %s (%s or newer is needed)", filepath.Base(f.name), f.version, machine.MinVersion))
}

// dockerFacts are about the Docker engine.
type dockerFacts struct {
	need     need
	user     User
	address  string
	versions engine.Versions
	err      error // of the caller
	access   error // why Drover's user may not use the socket
	isDenied bool  // the caller may not use it
	install  string
}

func gatherDocker(ctx context.Context, h *Host) dockerFacts {
	f := gatherDockerEngine(ctx, h)
	if !f.isUsable() {
		f.need = h.needOf(docker.Name, func() bool { return hasQEMU(ctx, h) })
	}
	return f
}

// isUsable reports whether Drover can use the engine.
func (f dockerFacts) isUsable() bool { return f.err == nil && !errors.Is(f.access, unix.EACCES) }

// hasQEMU reports whether Drover can run QEMU. One that only its user may run counts.
func hasQEMU(ctx context.Context, h *Host) bool {
	program, err := h.machineProgram(&launch.Users{})
	return err != nil || program.Check(ctx) == nil
}

func gatherDockerEngine(ctx context.Context, h *Host) dockerFacts {
	f := dockerFacts{user: h.User, install: installCommand("docker.io", "moby-engine")}
	e, err := engine.New("", h.Clock)
	if err != nil {
		f.err = err
		return f
	}
	defer e.Close()
	f.address = e.Address()
	f.versions, f.err = e.Versions(ctx)
	if socket, err := url.Parse(f.address); err == nil && socket.Scheme == "unix" {
		f.access = h.User.tryAs(func() error { return connectSocket(socket.Path) })
		f.isDenied = errors.Is(connectSocket(socket.Path), unix.EACCES)
	}
	return f
}

// connectSocket connects on this thread, whose user is the one that counts.
func connectSocket(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Connect(fd, &unix.SockaddrUnix{Name: path}), unix.Close(fd))
}

func judgeDocker(f dockerFacts) []findings.Finding {
	switch {
	case f.isDenied && errors.Is(f.access, errOtherUser):
		return oneFinding(findings.Note("you may not use the engine at %s", f.address).Means("Whether user %s may is unknown.", f.user.Name))
	case f.err != nil && errors.Is(f.access, unix.EACCES):
		return oneFinding(absentEngine(f.need, fmt.Sprintf("the engine at %s may not be used by user %s", f.address, f.user.Name), docker.Name).
			FixedBy("add the user to group docker, which gives it all rights on this host, and start Drover again").
			FixedByCommand("sudo usermod --append --groups docker %s", printable.ShellWord(f.user.Name)))
	case f.err != nil:
		return oneFinding(absentEngine(f.need, f.err.Error(), docker.Name).FixedBy("install Docker or start it, or set DOCKER_HOST").FixedByCommand("%s", f.install))
	case errors.Is(f.access, unix.EACCES):
		return oneFinding(absentEngine(f.need, fmt.Sprintf("Docker Engine %s answers, and user %s may not use it", f.versions.Engine, f.user.Name), docker.Name).
			FixedBy("add the user to group docker, which gives it all rights on this host, and start Drover again").
			FixedByCommand("sudo usermod --append --groups docker %s", printable.ShellWord(f.user.Name)))
	}
	return oneFinding(findings.OK("Engine %s (API %s) at %s", f.versions.Engine, f.versions.API, strings.TrimPrefix(f.address, "unix://")))
}

// ShortName returns the name of an engine with the beginning of its id.
func ShortName(e engines.Engine) string {
	const shown = 13 // two parts of a UUID
	e.ID = e.ID[:min(len(e.ID), shown)]
	return e.String()
}
