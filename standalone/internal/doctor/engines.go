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

// need says how much Drover needs an engine that does not answer.
type need int

const (
	unneeded      need = iota
	needed             // the engine's driver was requested, or has run here
	lastCandidate      // --vm-driver is auto, and no other engine answers
)

// needOf returns how much Drover needs the engine of the named driver, which does not answer.
func (h *Host) needOf(name string, otherAnswers func() bool) need {
	named, err := registry.Parse(h.VMDriver)
	switch {
	case err == nil && slices.Contains(named, name):
		return needed
	case slices.ContainsFunc(h.Known, func(e engines.Engine) bool { return e.Driver == name }):
		return needed
	case h.VMDriver == registry.Auto && !otherAnswers():
		return lastCandidate
	}
	return unneeded
}

// absentEngine returns a finding about a missing engine: a note if Drover does not need the engine, else an error.
func absentEngine(n need, text, driverName string) findings.Finding {
	switch n {
	case needed:
		return findings.Error("%s", text).Means("The %s driver cannot run servers. Its existing servers go on running, but their state is unknown.", driverName)
	case lastCandidate:
		return findings.Error("%s", text).Means("Neither Docker nor QEMU answers. drover up needs one of them to start, unless --vm-driver names a driver.")
	default:
		return findings.Note("%s", text).Means("Drover needs this only to run servers with the %s driver.", driverName)
	}
}

// installCommand returns the command that installs a package on this distribution, or "" if the
// distribution is unknown.
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

// qemuFacts are facts about the QEMU that machines run on.
type qemuFacts struct {
	need       need
	name       string
	version    string
	versionErr error // why the version is unknown
	checkErr   error // why Drover cannot use this QEMU
	refused    error // why Drover refuses to run this QEMU as root
	user       User
	asUser     string // the command that runs the checks as that user
	install    string
}

func gatherQEMU(ctx context.Context, h *Host) qemuFacts {
	f := qemuFacts{name: h.QEMU.Binary, install: installCommand("qemu-system-x86", "qemu-system-x86")}
	program, err := h.machineProgram(&launch.Users{})
	if err != nil {
		f.refused, f.user, f.asUser = err, h.User, fmt.Sprintf("sudo --user %s drover doctor --data-dir %s", datadir.SudoUser(h.User.ID), printable.ShellWord(string(h.Layout)))
		return f
	}
	if f.version, f.versionErr = program.Version(ctx); f.versionErr == nil {
		f.checkErr = program.Check(ctx)
	}
	if f.versionErr != nil || f.checkErr != nil {
		f.need = h.needOf(qemu.Name, func() bool { return probeDockerEngine(ctx, h).isUsable() })
	}
	return f
}

func judgeQEMU(f qemuFacts) []findings.Finding {
	switch {
	case f.refused != nil && f.user.isRoot():
		return oneFinding(findings.Error("%v", f.refused).Means("A user who can change QEMU would gain root privileges when Drover runs it.").
			FixedBy("use --qemu-binary to name a QEMU that only root can change"))
	case f.refused != nil:
		return oneFinding(findings.Note("%v", f.refused).Means("Whether this QEMU can run machines, and how they are confined, could not be checked.").
			FixedBy("run the checks as user %s", f.user.Name).FixedByCommand("%s", f.asUser))
	case f.versionErr != nil:
		return oneFinding(absentEngine(f.need, f.versionErr.Error(), qemu.Name).FixedBy("install QEMU %s or newer", machine.MinVersion).FixedByCommand("%s", f.install))
	case f.checkErr != nil:
		return oneFinding(absentEngine(f.need, f.checkErr.Error(), qemu.Name).FixedBy("install a newer QEMU, and name it with --qemu-binary"))
	}
	return oneFinding(findings.OK("%s %s (%s or newer is needed)", filepath.Base(f.name), f.version, machine.MinVersion))
}

// dockerFacts are facts about the Docker engine.
type dockerFacts struct {
	need      need
	user      User
	address   string
	versions  engine.Versions
	err       error // why the engine did not answer the caller
	accessErr error // why Drover's user cannot use the socket
	isDenied  bool  // the caller is not permitted to use the socket
	install   string
}

func gatherDocker(ctx context.Context, h *Host) dockerFacts {
	f := probeDockerEngine(ctx, h)
	if !f.isUsable() {
		f.need = h.needOf(docker.Name, func() bool { return hasQEMU(ctx, h) })
	}
	return f
}

// isUsable reports whether Drover can use the engine.
func (f dockerFacts) isUsable() bool { return f.err == nil && !errors.Is(f.accessErr, unix.EACCES) }

// hasQEMU reports whether Drover can run QEMU. It also returns true if that cannot be checked, because root must not run
// a QEMU that another user can change.
func hasQEMU(ctx context.Context, h *Host) bool {
	program, err := h.machineProgram(&launch.Users{})
	return err != nil || program.Check(ctx) == nil
}

// probeDockerEngine gathers all facts about the Docker engine except the need.
func probeDockerEngine(ctx context.Context, h *Host) dockerFacts {
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
		f.accessErr = h.User.tryAs(func() error { return connectSocket(socket.Path) })
		f.isDenied = errors.Is(connectSocket(socket.Path), unix.EACCES)
	}
	return f
}

// connectSocket connects to a socket. It uses raw system calls to stay on this thread, because tryAs may have switched
// the thread to another user.
func connectSocket(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Connect(fd, &unix.SockaddrUnix{Name: path}), unix.Close(fd))
}

func judgeDocker(f dockerFacts) []findings.Finding {
	switch {
	case f.isDenied && errors.Is(f.accessErr, errOtherUser):
		return oneFinding(findings.Note("you may not use the engine at %s", f.address).Means("Whether user %s may use it is unknown.", f.user.Name))
	case f.err != nil && errors.Is(f.accessErr, unix.EACCES):
		return oneFinding(absentEngine(f.need, fmt.Sprintf("user %s is not permitted to use the engine at %s", f.user.Name, f.address), docker.Name).
			FixedBy("add the user to group docker, which gives the user root privileges on this host, and start Drover again").
			FixedByCommand("sudo usermod --append --groups docker %s", printable.ShellWord(f.user.Name)))
	case f.err != nil:
		return oneFinding(absentEngine(f.need, f.err.Error(), docker.Name).FixedBy("install Docker or start it, or set DOCKER_HOST").FixedByCommand("%s", f.install))
	case errors.Is(f.accessErr, unix.EACCES):
		return oneFinding(absentEngine(f.need, fmt.Sprintf("Docker Engine %s answers, but user %s may not use it", f.versions.Engine, f.user.Name), docker.Name).
			FixedBy("add the user to group docker, which gives the user root privileges on this host, and start Drover again").
			FixedByCommand("sudo usermod --append --groups docker %s", printable.ShellWord(f.user.Name)))
	}
	return oneFinding(findings.OK("Engine %s (API %s) at %s", f.versions.Engine, f.versions.API, strings.TrimPrefix(f.address, "unix://")))
}

// ShortName returns the name of an engine with the beginning of its ID.
func ShortName(e engines.Engine) string {
	const shown = 13 // two parts of a UUID
	e.ID = e.ID[:min(len(e.ID), shown)]
	return e.String()
}
