// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/doctor"
	"cloudnative.tw/drover/standalone/internal/runstate"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// commandEnv has the command line that the test program runs instead of its tests.
const commandEnv = "DROVER_TEST_COMMAND"

// TestRunCommand runs one of the commands, in the process that TestOthersDataDir starts: a
// process that has become another user stays so.
func TestRunCommand(t *testing.T) {
	line := os.Getenv(commandEnv)
	if line == "" {
		t.Skip("TestOthersDataDir runs this")
	}
	p := Program{
		Version: "v1", Clock: clock.RealClock{}, Settings: settingsOfTest,
		AddDataDirFlag: func(f *pflag.FlagSet, dir *string) { f.StringVar(dir, "data-dir", "", "") },
	}
	args := strings.Fields(line)
	for _, cmd := range p.Commands() {
		if cmd.Name() == args[0] {
			cmd.SetArgs(args[1:])
			fmt.Println("result:", cmd.ExecuteContext(t.Context()))
		}
	}
	fmt.Println("user:", os.Geteuid())
}

// settingsOfTest takes the QEMU of the last run.
func settingsOfTest(h *doctor.Host) (doctor.Settings, error) {
	s := doctor.Settings{VMDriver: "qemu", QEMU: *qemu.DefaultOptions()}
	s.QEMU.Dir = filepath.Join(h.Layout.Drivers(), qemu.Name)
	if h.State != nil {
		s.QEMU.Binary = strings.TrimPrefix(h.State.Args[0], "--qemu-binary=")
	}
	return s, nil
}

// othersDir is a data dir of a plain user, whose QEMU records the users that run it.
type othersDir struct {
	datadir.Layout
	user *syscall.Credential
	ran  string
}

func makeOthersDir(t *testing.T) othersDir {
	t.Helper()
	base := framework.PublicDir(t)
	d := othersDir{Layout: datadir.Layout(filepath.Join(base, "data")), user: framework.PlainUser(t), ran: filepath.Join(base, "ran")}
	opened, err := datadir.Open(string(d.Layout))
	assert.NoError(t, err)
	program := filepath.Join(base, "qemu")
	script := fmt.Sprintf("#!/bin/sh\nid -u >>%s\necho QEMU emulator version 9.0.0\n", d.ran)
	state, err := json.Marshal(runstate.State{Args: []string{"--qemu-binary=" + program}})
	if err := errors.Join(err, opened.SetRunState(state), opened.SetClusterID("c"), opened.Close(),
		os.WriteFile(opened.Engines(), []byte("[]"), 0o600), os.WriteFile(program, []byte(script), 0o755), os.Chmod(program, 0o755),
		os.WriteFile(d.ran, nil, 0o666), os.Chmod(d.ran, 0o666),
		framework.ChownAll(string(d.Layout), d.user)); err != nil {
		t.Fatal(err)
	}
	return d
}

// run runs a command as root and returns what it prints, and which users have run the QEMU.
func (d othersDir) run(t *testing.T, line string) (out, users string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestRunCommand$")
	cmd.Env = append(os.Environ(), commandEnv+"="+line+" --data-dir="+string(d.Layout))
	printed, err := cmd.CombinedOutput()
	if err != nil {
		t.Logf("%s: %v", line, err) // doctor finds errors, and says so
	}
	ran, err := os.ReadFile(d.ran)
	assert.NoError(t, errors.Join(err, os.Truncate(d.ran, 0)))
	return string(printed), string(ran)
}

// TestOthersDataDir checks that no command runs as root what the owner of a data dir chose.
func TestOthersDataDir(t *testing.T) {
	d := makeOthersDir(t)
	plain := strconv.Itoa(int(d.user.Uid))
	for _, line := range []string{"doctor", "status", "orphans list", "retained list", "image list"} {
		out, users := d.run(t, line)
		if !strings.Contains(out, "user: "+plain) {
			t.Errorf("%s did not become user %s:\n%s", line, plain, out)
		}
		for user := range strings.FieldsSeq(users) {
			if user != plain {
				t.Errorf("%s ran the QEMU as user %s", line, user)
			}
		}
		if line == "doctor" && users == "" {
			t.Errorf("doctor did not run the QEMU:\n%s", out)
		}
	}
}

// TestBrokenDataDir checks that nothing of another user is run for a data dir of root where
// that user could write, or where there is none.
func TestBrokenDataDir(t *testing.T) {
	d := makeOthersDir(t)
	assert.NoError(t, os.Chown(string(d.Layout), 0, 0))
	if out, users := d.run(t, "doctor"); users != "" || !strings.Contains(out, "another user owns it, or may write to it") {
		t.Errorf("a file of another user: run by %q:\n%s", users, out)
	}
	assert.NoError(t, errors.Join(os.Chown(d.RunState(), 0, 0), os.Chmod(d.RunState(), 0o666)))
	if out, users := d.run(t, "doctor"); users != "" || !strings.Contains(out, "another user owns it, or may write to it") {
		t.Errorf("a file that others may write to: run by %q:\n%s", users, out)
	}
	assert.NoError(t, os.RemoveAll(string(d.Layout)))
	if out, users := d.run(t, "doctor"); users != "" || !strings.Contains(out, "user: 0") {
		t.Errorf("no data dir: run by %q:\n%s", users, out)
	}
}
