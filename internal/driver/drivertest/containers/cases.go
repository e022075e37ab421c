// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// report prints what a command is given: its user with all groups, its environment and its arguments.
const report = `
echo "$(id -u) $(id -g) [$(busybox sed -n 's/^Groups:[[:space:]]*\(.*[0-9]\).*/\1/p' /proc/self/status)] on $(hostname)"
env | busybox sort
for argument; do echo "<$argument>"; done
`

// baseImage is the image of a case that says nothing else. A label like those of Drover's
// containers has no effect.
func baseImage() v1.Config {
	return v1.Config{
		Entrypoint: []string{"/bin/sh", "-c"}, Cmd: []string{report}, Env: []string{"A=image", "B=image"},
		Labels: map[string]string{"cloudnative.tw/env": "A"},
	}
}

// job is a command that ends by itself.
type job struct {
	image  func(*v1.Config)
	change func(*driver.ServerSpec)
	prints string
	code   int
	inGate bool
}

var jobs = map[string]job{
	// All fields of a command at once, for a user with a group of /etc/group, in a folder that is not there.
	"fields": {
		image: func(c *v1.Config) { c.User, c.WorkingDir = "ann", "/made/by" },
		change: func(s *driver.ServerSpec) {
			s.Args = []string{report + "exit 3", "zero", "", " two  words ", "two\nlines", "é漢 $(A) $A"}
			s.Env = []driver.EnvVar{envVar("B", "hunter2"), envVar("C", "$(A) = é\nb"), envVar("D", "")}
			s.WorkingDir = "/made/for this"
		},
		prints: printed("1000 1000 [50 1000]", "A=image", "B=hunter2", "C=$(A) = é", "D=", "HOME=/home/ann", "HOSTNAME=test-vm", path, "PWD=/made/for this", "SHLVL=1", "b",
			"<>", "< two  words >", "<two", "lines>", "<é漢 $(A) $A>"),
		code: 3, inGate: true,
	},
	"no user":            jobOfUser("", "0 0 [0]", "/root"),
	"uid":                jobOfUser("1000", "1000 1000 [50 1000]", "/home/ann"),
	"uid without a name": jobOfUser("2000", "2000 0 [0]", "/"),
	"uid and gid":        jobOfUser("1234:5", "1234 5 [5]", "/"),
	"name and group":     jobOfUser("ann:staff", "1000 50 [50]", "/home/ann"),
	"signal": { // which process 1 cannot ignore
		change: func(s *driver.ServerSpec) { s.Args = []string{"echo begins; ulimit -t 1; while :; do :; done"} },
		prints: "begins\n", code: 137,
	},
	"long command": { // in place of entrypoint and arguments
		change: func(s *driver.ServerSpec) {
			s.Command = slices.Concat([]string{"/bin/sh", "-c", `echo "$# ${#0} $PWD"`, strings.Repeat("x", 131071)}, slices.Repeat([]string{"x"}, 256))
		},
		prints: "256 131071 /\n",
	},
	"command and args": { // to the standard error
		change: func(s *driver.ServerSpec) {
			s.Command, s.Args = []string{"sh", "-c"}, []string{`echo -n "$0 $1" >&2`, "no end", "of a line"}
		},
		prints: "no end of a line",
	},
}

// path is the PATH of an image that has none.
const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// printed is the output of report for a user.
func printed(user string, lines ...string) string {
	return user + " on test-vm\n" + strings.Join(lines, "\n") + "\n"
}

// jobOfUser is the report of an image with a user, in the folder that is the user's home.
func jobOfUser(user, prints, home string) job {
	return job{
		image:  func(c *v1.Config) { c.User, c.WorkingDir = user, home },
		prints: printed(prints, "A=image", "B=image", "HOME="+home, "HOSTNAME=test-vm", path, "PWD="+home, "SHLVL=1"),
	}
}

func envVar(name, value string) driver.EnvVar {
	return driver.EnvVar{Name: name, Value: driver.NewSecret(value)}
}

// create returns the spec of a case.
func (e *env) create(t *testing.T, image func(*v1.Config), change func(*driver.ServerSpec)) driver.ServerSpec {
	t.Helper()
	config := baseImage()
	if image != nil {
		image(&config)
	}
	spec := e.newSpec(t, config)
	if change != nil {
		change(&spec)
	}
	return spec
}

func (e *env) testJob(t *testing.T, j job) {
	spec := e.create(t, j.image, j.change)
	e.start(t, spec, "")
	e.wantEnd(t, spec, j.code, "")
	wantPrinted(t, e.log(t, spec), j.prints)
}

// fault is an image or command that cannot be run. A container is refused, and a machine ends with the
// code that a shell has for it, since only the guest reads the image's files.
type fault struct {
	image   func(*v1.Config)
	change  func(*driver.ServerSpec)
	refusal string
	code    int
	message string
}

var faults = map[string]fault{
	"no program": {
		image:   func(c *v1.Config) { c.Entrypoint = []string{"/nope"} },
		refusal: `runs the command "/nope", which does not exist in it; once the image is repaired`, code: 127, message: `"/nope" is not found in the image`,
	},
	"no program in PATH": {
		image:   func(c *v1.Config) { c.Entrypoint = []string{"nope"} },
		refusal: `runs the command "nope", which is in no folder of its PATH; once the image is repaired`, code: 127,
		message: `"nope" is not found in the folders of PATH, ` + strconv.Quote(strings.TrimPrefix(path, "PATH=")),
	},
	"no program of the spec": {
		change:  func(s *driver.ServerSpec) { s.Command = []string{"/nope"} },
		refusal: `spec.command: the program "/nope" does not exist in it`, code: 127, message: `"/nope" is not found in the image`,
	},
	"folder": {
		image:   func(c *v1.Config) { c.Entrypoint = []string{"/tmp"} },
		refusal: `runs the command "/tmp", which is not an executable file; once the image is repaired`, code: 126, message: `"/tmp" is not executable: it is a folder`,
	},
	"no program file": {
		image:   func(c *v1.Config) { c.Entrypoint = []string{"/etc/passwd"} },
		refusal: `runs the command "/etc/passwd", which is not an executable file; once the image is repaired`, code: 126, message: `"/etc/passwd" is not executable: its mode is -rw-r--r--`,
	},
	"user": {
		image:   func(c *v1.Config) { c.User = "nosuch" },
		refusal: "runs as the user nosuch, which its /etc/passwd does not have", code: 128, message: `user is "nosuch", which the image's /etc/passwd does not have`,
	},
	"group": {
		image:   func(c *v1.Config) { c.User = "ann:nosuch" },
		refusal: "runs as the group nosuch, which its /etc/group does not have", code: 128, message: `user names the group "nosuch", which the image's /etc/group does not have`,
	},
	"workingDir": {
		change:  func(s *driver.ServerSpec) { s.WorkingDir = "/etc/passwd" },
		refusal: "spec.workingDir: /etc/passwd cannot be entered", code: 128, message: "make the working directory: mkdir /etc/passwd: not a directory",
	},
}

func (e *env) testFault(t *testing.T, f fault) {
	spec := e.create(t, f.image, f.change)
	if e.IsMachine {
		e.start(t, spec, "")
		e.wantEnd(t, spec, f.code, f.message)
		return
	}
	e.wantRefused(t, spec, "image "+spec.Image.Source, f.refusal)
}

// wantRefused waits until Ensure refuses a spec in words of Drover's, and checks that nothing is left of it.
func (e *env) wantRefused(t *testing.T, spec driver.ServerSpec, says ...string) {
	t.Helper()
	var failure error
	assert.Eventually(t, "Ensure fails", func(t testing.TB) error {
		s, err := e.driver.Ensure(t.Context(), spec)
		if failure = err; err == nil || errors.Is(err, driver.ErrRetry) {
			return fmt.Errorf("it is %+v, %w", s, errors.Join(err, driver.ErrRetry))
		}
		return nil
	})
	assert.ErrorIs(t, "Ensure", failure, driver.ErrInvalid, says...)
	assert.True(t, !strings.Contains(failure.Error(), "runc"), "it has the engine's text: %v", failure)
	all, err := e.driver.List(t.Context(), spec.UID)
	assert.NoError(t, err)
	assert.True(t, e.IsMachine || !slices.ContainsFunc(all, func(s driver.Server) bool { return s.ID != "" }), "it left %+v", all)
}

// testNoCommand checks that neither driver runs an image that names no command.
func (e *env) testNoCommand(t *testing.T) {
	spec := e.create(t, func(c *v1.Config) { c.Entrypoint, c.Cmd = nil, nil }, nil)
	says := "does not name a command to run"
	if e.IsMachine {
		says = "the image has neither entrypoint nor command"
	}
	e.wantRefused(t, spec, "spec.image", says)
}

// serve is a web server that counts its runs, shows the size of its disk in MiB and a Secret, and exits
// at SIGUSR1.
const serve = `
trap 'exit 0' USR1
mkdir -p /www && echo x >>/www/runs
df -m / | busybox awk 'NR==2 {print $2}' >/www/size
echo "$TOKEN" >/www/token
httpd -p 8080 -h /www
echo "serves $(cat /www/runs | wc -l)"
sleep 1000000 & wait
`

// testServer checks a server that answers at a published port and to a probe, whose Secret no command
// line shows, and which keeps what it has written when it is stopped, gets a larger disk and is started again.
func (e *env) testServer(t *testing.T) {
	secret := "s3cr3t-" + string(uuid.NewUUID())
	spec := e.create(t, func(c *v1.Config) { c.StopSignal = "SIGUSR1" }, func(s *driver.ServerSpec) {
		s.Args, s.Env, s.Ports = []string{serve}, []driver.EnvVar{envVar("TOKEN", secret)}, []driver.Port{{Name: "http", Protocol: "TCP", Port: 8080}}
	})
	s := e.start(t, spec, "")
	e.probe(t, s, 8080)
	got := e.get(t, s, "/token")
	assert.True(t, got == secret+"\n", "the Secret is %q, want %q", got, secret)
	wantNoCommandLine(t, secret)
	e.wantDisk(t, s, spec)
	spec.RootDiskBytes *= 2
	if s, err := e.driver.Ensure(t.Context(), spec); err != nil || len(s.Pending) > 0 {
		t.Errorf("after the disk was grown it is %+v, %v", s, err)
	}
	e.stop(t, spec)
	e.wantEnd(t, spec, 0, "")
	s = e.start(t, spec, s.Run)
	assert.Equal(t, "of two runs the disk has", e.get(t, s, "/runs"), "x\nx\n")
	e.wantDisk(t, s, spec)
	e.prints(t, spec, "serves 2\n")
	wantPrinted(t, e.log(t, spec), "serves 2\n")
}

// wantDisk checks the size of the root as its server sees it. A container may use the disk of its host, and says so.
func (e *env) wantDisk(t *testing.T, s driver.Server, spec driver.ServerSpec) {
	t.Helper()
	if !e.IsMachine {
		assert.Contains(t, "the note", s.Note, "is not enforced")
		return
	}
	mib, err := strconv.ParseInt(strings.TrimSpace(e.get(t, s, "/size")), 10, 64)
	assert.NoError(t, err)
	want := spec.RootDiskBytes >> 20
	assert.True(t, mib <= want && mib >= want*3/4 && s.Note == "", "the root has %d MiB of %d, and the note is %q", mib, want, s.Note)
}

// probe waits until a probe succeeds, as the controller's.
func (e *env) probe(t *testing.T, s driver.Server, port int32) {
	t.Helper()
	assert.Eventually(t, "a probe succeeds", func(t testing.TB) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if prober, ok := driver.As[driver.Prober](e.driver); ok {
			return prober.Probe(ctx, s.UID, port)
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(s.Addresses[0], fmt.Sprint(port)))
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// wantNoCommandLine checks that no process of this host shows a Secret to everyone.
func wantNoCommandLine(t *testing.T, secret string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	assert.NoError(t, err)
	for _, file := range lines {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), secret) { //nolint:gosec // a process may have ended
			t.Errorf("%s has the Secret: %q", file, text)
		}
	}
}

// stop asks a server to stop. The stop is not forced within the test.
func (e *env) stop(t *testing.T, spec driver.ServerSpec) {
	t.Helper()
	spec.Power, spec.StopBy = driver.PowerOff, clock.RealClock{}.Now().Add(time.Hour)
	assert.NoError(t, assert.ErrorOf(e.driver.Ensure(t.Context(), spec)))
}

// testFirstProcess checks what a command has as process 1 of a container, and not in a machine: an input that is open, and
// no end by a signal that it does not handle, so that it is killed when its time is over.
func (e *env) testFirstProcess(t *testing.T) {
	spec := e.create(t, nil, func(s *driver.ServerSpec) {
		s.Args = []string{"if test -p /dev/stdin; then echo its input is open; fi; echo it runs; exec sleep 1000000"}
	})
	e.start(t, spec, "")
	e.prints(t, spec, "it runs\n")
	e.stop(t, spec)
	if e.IsMachine {
		e.wantEnd(t, spec, 143, "")
		wantPrinted(t, e.log(t, spec), "it runs\n")
		return
	}
	wantPrinted(t, e.log(t, spec), "its input is open\nit runs\n")
	all, err := e.driver.List(t.Context(), spec.UID)
	assert.NoError(t, err)
	assert.True(t, len(all) == 1 && all[0].State == driver.StateStopping, "it is %+v, want it stopping", all)
	spec.Power, spec.StopBy = driver.PowerOff, time.Unix(1, 0)
	assert.NoError(t, assert.ErrorOf(e.driver.Ensure(t.Context(), spec)))
	e.wantEnd(t, spec, 137, "")
}

func wantPrinted(t *testing.T, got, want string) {
	t.Helper()
	assert.Equal(t, "it printed", got, want)
}
