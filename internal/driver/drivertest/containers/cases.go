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

// reportScript prints the user that runs it with all groups, the environment and the arguments.
const reportScript = `
echo "$(id -u) $(id -g) [$(busybox sed -n 's/^Groups:[[:space:]]*\(.*[0-9]\).*/\1/p' /proc/self/status)] on $(hostname)"
env | busybox sort
for argument; do echo "<$argument>"; done
`

// baseImage returns the configuration of the image that all cases start from. Its label has the name
// of a label of Drover's containers, and must not have an effect.
func baseImage() v1.Config {
	return v1.Config{
		Entrypoint: []string{"/bin/sh", "-c"}, Cmd: []string{reportScript}, Env: []string{"A=image", "B=image"},
		Labels: map[string]string{"cloudnative.tw/env": "A"},
	}
}

// job is a command that exits by itself, with its expected output and exit code.
type job struct {
	setImage func(*v1.Config)
	setSpec  func(*driver.ServerSpec)
	output   string // to standard output
	errors   string // to standard error
	code     int
	inGate   bool
}

var jobs = map[string]job{
	// All fields of a command, with a user who has a group in /etc/group, and a working directory that does not exist.
	"fields": {
		setImage: func(c *v1.Config) { c.User, c.WorkingDir = "nosuch", "/made/by" },
		setSpec: func(s *driver.ServerSpec) {
			s.Args = []string{reportScript + "exit 3", "zero", "", " two  words ", "two\nlines", "é漢 $(A) $A"}
			s.Env = []driver.EnvVar{envVar("B", "hunter2"), envVar("C", "$(A) = é\nb"), envVar("D", "")}
			s.WorkingDir, s.User = "/made/for this", "ann"
		},
		output: reportOutput("1000 1000 [50 1000]", "A=image", "B=hunter2", "C=$(A) = é", "D=", "HOME=/home/ann", "HOSTNAME=test-vm", defaultPath, "PWD=/made/for this", "SHLVL=1", "b",
			"<>", "< two  words >", "<two", "lines>", "<é漢 $(A) $A>"),
		code: 3, inGate: true,
	},
	"no user":            jobOfUser("", "0 0 [0]", "/root"),
	"uid":                jobOfUser("1000", "1000 1000 [50 1000]", "/home/ann"),
	"uid without a name": jobOfUser("2000", "2000 0 [0]", "/"),
	"uid and gid":        jobOfUser("1234:5", "1234 5 [5]", "/"),
	"name and group":     jobOfUser("ann:staff", "1000 50 [50]", "/home/ann"),
	"signal": { // SIGKILL from the CPU limit, which even process 1 cannot ignore
		setSpec: func(s *driver.ServerSpec) { s.Args = []string{"echo begins; ulimit -t 1; while :; do :; done"} },
		output:  "begins\n", code: 137,
	},
	"long command": { // replaces both the entrypoint and the arguments of the image
		setSpec: func(s *driver.ServerSpec) {
			s.Command = slices.Concat([]string{"/bin/sh", "-c", `echo "$# ${#0} $PWD"`, strings.Repeat("x", 131071)}, slices.Repeat([]string{"x"}, 256))
		},
		output: "256 131071 /\n",
	},
	"sysctls": {
		setSpec: func(s *driver.ServerSpec) {
			s.Args = []string{"cat /proc/sys/net/core/somaxconn /proc/sys/net/ipv4/conf/eth0/forwarding"}
			s.Sysctls = []driver.Sysctl{{Name: "net.core.somaxconn", Value: "512"}, {Name: "net.ipv4.conf.eth0.forwarding", Value: "0"}}
		},
		output: "512\n0\n",
	},
	"command and args": {
		setSpec: func(s *driver.ServerSpec) {
			s.Command, s.Args = []string{"sh", "-c"}, []string{`echo out; echo -n "$0 $1" >&2`, "no end", "of a line"}
		},
		output: "out\n", errors: "no end of a line",
	},
}

// defaultPath is the PATH of a command whose image does not set PATH.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// reportOutput returns the output that reportScript prints for a user.
func reportOutput(user string, lines ...string) string {
	return user + " on test-vm\n" + strings.Join(lines, "\n") + "\n"
}

// jobOfUser returns a job whose image sets a user, and the user's home as the working directory.
func jobOfUser(user, wantUser, home string) job {
	return job{
		setImage: func(c *v1.Config) { c.User, c.WorkingDir = user, home },
		output:   reportOutput(wantUser, "A=image", "B=image", "HOME="+home, "HOSTNAME=test-vm", defaultPath, "PWD="+home, "SHLVL=1"),
	}
}

func envVar(name, value string) driver.EnvVar {
	return driver.EnvVar{Name: name, Value: driver.NewSecret(value)}
}

// specOf returns the spec of a case, whose setImage and setSpec may be nil.
func (e *env) specOf(t *testing.T, setImage func(*v1.Config), setSpec func(*driver.ServerSpec)) driver.ServerSpec {
	t.Helper()
	config := baseImage()
	if setImage != nil {
		setImage(&config)
	}
	spec := e.newSpec(t, config)
	if setSpec != nil {
		setSpec(&spec)
	}
	return spec
}

func (e *env) testJob(t *testing.T, j job) {
	spec := e.specOf(t, j.setImage, j.setSpec)
	e.startRun(t, spec, "")
	e.wantExit(t, spec, j.code, "")
	e.wantPrinted(t, spec, j.output, j.errors)
}

// fault is an image or command that cannot be run. A container driver refuses it, with the text refusal. A machine boots
// and exits with a shell's code and with message, since only the guest reads the image's files.
type fault struct {
	setImage func(*v1.Config)
	setSpec  func(*driver.ServerSpec)
	refusal  string
	code     int
	message  string
}

var faults = map[string]fault{
	"no program": {
		setImage: func(c *v1.Config) { c.Entrypoint = []string{"/nope"} },
		refusal:  `runs the command "/nope", which does not exist; repair the image and restart`, code: 127, message: `"/nope" is not found in the image`,
	},
	"no program in PATH": {
		setImage: func(c *v1.Config) { c.Entrypoint = []string{"nope"} },
		refusal:  `runs the command "nope", which is in no folder of PATH; repair the image and restart`, code: 127,
		message: `"nope" is not found in the folders of PATH, ` + strconv.Quote(strings.TrimPrefix(defaultPath, "PATH=")),
	},
	"no program of the spec": {
		setSpec: func(s *driver.ServerSpec) { s.Command = []string{"/nope"} },
		refusal: `spec.command: the program "/nope" does not exist in image`, code: 127, message: `"/nope" is not found in the image`,
	},
	"folder": {
		setImage: func(c *v1.Config) { c.Entrypoint = []string{"/tmp"} },
		refusal:  `runs the command "/tmp", which is not an executable file; repair the image and restart`, code: 126, message: `"/tmp" is not executable: it is a folder`,
	},
	"no program file": {
		setImage: func(c *v1.Config) { c.Entrypoint = []string{"/etc/passwd"} },
		refusal:  `runs the command "/etc/passwd", which is not an executable file; repair the image and restart`, code: 126, message: `"/etc/passwd" is not executable: its mode is -rw-r--r--`,
	},
	"sysctl without a file": {
		setSpec: func(s *driver.ServerSpec) { s.Sysctls = []driver.Sysctl{{Name: "net.no.such", Value: "1"}} },
		refusal: "spec.sysctls: net.no.such=1 cannot be set: no such file or directory", code: 128, message: "sysctls: net.no.such=1 cannot be set: no such file or directory",
	},
	"sysctl of another type": {
		setSpec: func(s *driver.ServerSpec) { s.Sysctls = []driver.Sysctl{{Name: "net.core.somaxconn", Value: "many"}} },
		refusal: "spec.sysctls: net.core.somaxconn=many cannot be set: invalid argument", code: 128, message: "sysctls: net.core.somaxconn=many cannot be set: invalid argument",
	},
	"user of the spec": {
		setSpec: func(s *driver.ServerSpec) { s.User = "nosuch" },
		refusal: "spec.user: image", code: 128, message: `user is "nosuch", which the image's /etc/passwd does not have`,
	},
	"user": {
		setImage: func(c *v1.Config) { c.User = "nosuch" },
		refusal:  "runs as the user nosuch, which its /etc/passwd does not have", code: 128, message: `user is "nosuch", which the image's /etc/passwd does not have`,
	},
	"group": {
		setImage: func(c *v1.Config) { c.User = "ann:nosuch" },
		refusal:  "runs as the group nosuch, which its /etc/group does not have", code: 128, message: `user names the group "nosuch", which the image's /etc/group does not have`,
	},
	"volume on a file": {
		setSpec: func(s *driver.ServerSpec) {
			s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 30, MountPath: "/etc/passwd"}}
		},
		refusal: "spec.volumes[0].mountPath: /etc/passwd is a file in image", code: 128, message: "the volume data: the image's /etc/passwd: not a directory",
	},
	"workingDir": {
		setSpec: func(s *driver.ServerSpec) { s.WorkingDir = "/etc/passwd" },
		refusal: "spec.workingDir: /etc/passwd cannot be entered", code: 128, message: "make the working directory: mkdir /etc/passwd: not a directory",
	},
}

func (e *env) testFault(t *testing.T, f fault) {
	spec := e.specOf(t, f.setImage, f.setSpec)
	if e.IsMachine {
		e.startRun(t, spec, "")
		e.wantExit(t, spec, f.code, f.message)
		return
	}
	texts := []string{f.refusal}
	if len(spec.Sysctls) == 0 { // else the image is not at fault
		texts = append(texts, "image "+spec.Image.Source)
	}
	e.wantRefused(t, spec, texts...)
}

// testKernelSysctl checks that a machine sets a parameter that containers share, and that a container is refused.
func (e *env) testKernelSysctl(t *testing.T) {
	spec := e.specOf(t, nil, func(s *driver.ServerSpec) {
		s.Args, s.Sysctls = []string{"cat /proc/sys/vm/swappiness"}, []driver.Sysctl{{Name: "vm.swappiness", Value: "7"}}
	})
	if !e.IsMachine {
		e.wantRefused(t, spec, "spec.sysctls: vm.swappiness=7 cannot be set, since vm.swappiness is not in a separate kernel namespace")
		return
	}
	e.startRun(t, spec, "")
	e.wantExit(t, spec, 0, "")
	e.wantPrinted(t, spec, "7\n", "")
}

// wantRefused waits until Ensure refuses a spec. It checks that the error has all texts without quoting the
// engine, and that no server is left.
func (e *env) wantRefused(t *testing.T, spec driver.ServerSpec, texts ...string) {
	t.Helper()
	var failure error
	assert.Eventually(t, "Ensure fails", func(t testing.TB) error {
		s, err := e.driver.Ensure(t.Context(), spec)
		if failure = err; err == nil || errors.Is(err, driver.ErrRetry) {
			return fmt.Errorf("the server is %+v, %w", s, errors.Join(err, driver.ErrRetry))
		}
		return nil
	})
	assert.ErrorIs(t, "Ensure", failure, driver.ErrInvalid, texts...)
	assert.True(t, !strings.Contains(failure.Error(), "runc"), "the error repeats the engine's text: %v", failure)
	all, err := e.driver.List(t.Context(), spec.UID)
	assert.NoError(t, err)
	assert.True(t, e.IsMachine || !slices.ContainsFunc(all, func(s driver.Server) bool { return s.ID != "" }), "the refused spec left %+v", all)
}

// testNoCommand checks that neither driver runs an image that names no command.
func (e *env) testNoCommand(t *testing.T) {
	spec := e.specOf(t, func(c *v1.Config) { c.Entrypoint, c.Cmd = nil, nil }, nil)
	text := "does not name a command to run"
	if e.IsMachine {
		text = "the image has neither entrypoint nor command"
	}
	e.wantRefused(t, spec, "spec.image", text)
}

// serverScript is a web server whose pages show how often it was started, the size of its disk in MiB and a
// Secret. It exits at SIGUSR1.
const serverScript = `
trap 'exit 0' USR1
mkdir -p /www && echo x >>/www/runs
df -m / | busybox awk 'NR==2 {print $2}' >/www/size
echo "$TOKEN" >/www/token
httpd -p 8080 -h /www
echo "serves $(cat /www/runs | wc -l)"
sleep 1000000 & wait
`

// testServer checks that a server answers at a published port and to a probe, that no command line shows its
// Secret, and that its files outlast a stop, a growth of the disk and a start.
func (e *env) testServer(t *testing.T) {
	secret := "s3cr3t-" + string(uuid.NewUUID())
	spec := e.specOf(t, func(c *v1.Config) {
		c.StopSignal, c.ExposedPorts = "SIGUSR1", map[string]struct{}{"8080/tcp": {}, "8443/tcp": {}, "53/udp": {}}
	}, func(s *driver.ServerSpec) {
		s.Args, s.Env, s.Ports = []string{serverScript}, []driver.EnvVar{envVar("TOKEN", secret)}, []driver.Port{{Name: "http", Protocol: "TCP", Port: 8080}}
	})
	s := e.startRun(t, spec, "")
	e.waitForProbe(t, s, 8080)
	all, err := e.driver.List(t.Context(), spec.UID)
	assert.NoError(t, err)
	assert.True(t, len(all) == 1 && slices.Equal(all[0].UnpublishedPorts, []string{"53/udp", "8443/tcp"}), "List returns %+v, want two ports that are not published", all)
	got := e.getPage(t, s, "/token")
	assert.True(t, got == secret+"\n", "the Secret is %q, want %q", got, secret)
	wantNoCommandLine(t, secret)
	e.testCommands(t, s)
	e.wantDisk(t, s, spec)
	spec.RootDiskBytes *= 2
	if s, err := e.driver.Ensure(t.Context(), spec); err != nil || len(s.Pending) > 0 {
		t.Errorf("after the disk was grown the server is %+v, %v", s, err)
	}
	e.requestStop(t, spec)
	e.wantExit(t, spec, 0, "")
	s = e.startRun(t, spec, s.Run)
	assert.Equal(t, "the file to which each of two runs appends a line", e.getPage(t, s, "/runs"), "x\nx\n")
	e.wantDisk(t, s, spec)
	e.waitForOutput(t, spec, "serves 2\n")
	e.wantPrinted(t, spec, "serves 2\n", "")
}

// wantDisk checks the size of the root disk that a machine sees, or the note that a container's size is not enforced.
func (e *env) wantDisk(t *testing.T, s driver.Server, spec driver.ServerSpec) {
	t.Helper()
	if !e.IsMachine {
		assert.Contains(t, "the note", s.Note, "is not enforced")
		return
	}
	mib, err := strconv.ParseInt(strings.TrimSpace(e.getPage(t, s, "/size")), 10, 64)
	assert.NoError(t, err)
	want := spec.RootDiskBytes >> 20
	assert.True(t, mib <= want && mib >= want*3/4 && s.Note == "", "the root has %d MiB of %d, and the note is %q", mib, want, s.Note)
}

// waitForProbe waits until the server answers a probe as the controller makes it.
func (e *env) waitForProbe(t *testing.T, s driver.Server, port int32) {
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
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	assert.NoError(t, err)
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), secret) { //nolint:gosec // a process may have ended
			t.Errorf("%s shows the Secret: %q", file, text)
		}
	}
}

// requestStop asks a server to stop, with so late a StopBy that the test sees no forced stop.
func (e *env) requestStop(t *testing.T, spec driver.ServerSpec) {
	t.Helper()
	spec.Power, spec.StopBy = driver.PowerOff, clock.RealClock{}.Now().Add(time.Hour)
	assert.NoError(t, assert.ErrorOf(e.driver.Ensure(t.Context(), spec)))
}

// testFirstProcess checks whether a command is process 1, and its end: process 1 survives a signal that it
// does not handle, so that it is killed at the end of the stop.
func (e *env) testFirstProcess(t *testing.T, init driver.Init) {
	spec := e.specOf(t, nil, func(s *driver.ServerSpec) {
		s.Init = init
		s.Args = []string{"if test $$ = 1; then echo first; else echo child; fi; exec sleep 1000000"}
	})
	e.startRun(t, spec, "")
	output, code := "child\n", 143
	if init == driver.InitImage || init == "" && !e.IsMachine {
		output, code = "first\n", 137
	}
	e.waitForOutput(t, spec, output)
	e.wantPrinted(t, spec, output, "")
	e.requestStop(t, spec)
	if code == 137 && !e.IsMachine { // the guest of a machine has a shorter limit than the stop
		all, err := e.driver.List(t.Context(), spec.UID)
		assert.NoError(t, err)
		assert.True(t, len(all) == 1 && all[0].State == driver.StateStopping, "List returns %+v, want one server that is stopping", all)
		spec.Power, spec.StopBy = driver.PowerOff, time.Unix(1, 0)
		assert.NoError(t, assert.ErrorOf(e.driver.Ensure(t.Context(), spec)))
	}
	e.wantExit(t, spec, code, "")
}

// testHealthCheck checks that the HEALTHCHECK of an image decides whether its server is ready, that it runs as the command
// does, and that a change is an event.
func (e *env) testHealthCheck(t *testing.T) {
	check := &v1.HealthConfig{Test: []string{"CMD-SHELL", `test "$(id -un) $A $PWD" = "ann image /home/ann" && cat healthy`}, Interval: 200 * time.Millisecond, Retries: 2}
	spec := e.specOf(t, func(c *v1.Config) { c.Healthcheck, c.User, c.WorkingDir = check, "ann", "/home/ann" }, func(s *driver.ServerSpec) {
		s.Args = []string{"exec sleep 1000000"}
	})
	events, err := e.driver.Watch(t.Context())
	assert.NoError(t, err)
	waitFor := func(text string) {
		t.Helper()
		assert.Eventually(t, "it is not ready because of "+text, func(t testing.TB) error {
			assert.Receive(t, "event", events)
			all, err := e.driver.List(t.Context(), spec.UID)
			assert.NoError(t, err)
			return assert.ErrorUnless(len(all) == 1 && all[0].State == driver.StateRunning && all[0].NotReady == text, "the list is %+v", all)
		})
	}
	e.startRun(t, spec, "")
	const fails = "the HEALTHCHECK of the image fails"
	waitFor(fails)
	e.checkCommands(t, spec, []imageCommand{{script: "touch healthy"}})
	waitFor("")
	e.checkCommands(t, spec, []imageCommand{{script: "rm healthy"}})
	waitFor(fails)
}
