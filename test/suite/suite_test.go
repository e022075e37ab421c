// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
)

func TestMain(m *testing.M) {
	root, err := findRoot()
	if err == nil {
		err = os.Chdir(root)
	}
	if err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestArgumentsAreNamed(t *testing.T) {
	for want, args := range map[string][]string{
		"usage":            {},
		`"internal/nope"`:  {"gate", "internal/nope"},
		`no shard "nope"`:  {"full", "nope"},
		"N is at least 1":  {"flakes", "-n", "0", "internal/leader"},
		"usage: suite fla": {"flakes"},
	} {
		err := run(t.Context(), args)
		assert.True(t, err != nil && strings.Contains(err.Error(), want), "suite %v: %v, want %q in it", args, err, want)
	}
}

// TestFailuresNameTheirPackage checks which output of failed tests is kept, for one package and for several.
func TestFailuresNameTheirPackage(t *testing.T) {
	t.Parallel()
	long := "--- FAIL: TestContract (9.1s)\n    --- FAIL: TestContract/StopForced (3.0s)\n" + strings.Repeat("        ensure.go:1: a log\n", 50) + "        power.go:45: the cause\n"
	kept := "--- FAIL: TestContract (9.1s)|    --- FAIL: TestContract/StopForced (3.0s)|" + strings.Repeat("        ensure.go:1: a log|", 3) + "    (42 lines)|" +
		strings.Repeat("        ensure.go:1: a log|", 5) + "        power.go:45: the cause"
	const race = "==================\nWARNING: DATA RACE\nRead at 0x1\n"
	for name, c := range map[string]struct{ pkg, output, want string }{
		"one package": {"internal/driver/qemu", "a log of a test that passed\n" + long + "FAIL\n", "in internal/driver/qemu:|" + kept},
		"several packages": {"", "ok  \tcloudnative.tw/drover/internal/a\t0.1s\n" + long + "FAIL\nFAIL\tcloudnative.tw/drover/internal/driver/fake\t9.2s\n" +
			race + "FAIL\tcloudnative.tw/drover/internal/leader\t1.1s\nFAIL\n", "in internal/driver/fake:|" + kept + "|in internal/leader:|WARNING: DATA RACE|Read at 0x1"},
		"a package that cannot be built": {"", "# cloudnative.tw/drover/internal/a\na.go:1: undefined: b\nFAIL\tcloudnative.tw/drover/internal/a [build failed]\n", ""},
		"a crash":                        {"internal/leader", "panic: nil\n\ngoroutine 1:\n", "in internal/leader:|panic: nil||goroutine 1:"},
	} {
		got := strings.Join(findFailures(c.pkg, c.output), "|")
		assert.True(t, got == c.want, "%s: kept is\n%s, want\n%s", name, got, c.want)
	}
}

// TestClosedFolder checks that tests do not run in a folder that other users cannot enter.
func TestClosedFolder(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: no test runs a program as another user")
	}
	dir := filepath.Join(t.TempDir(), "closed", "temp")
	assert.NoError(t, os.MkdirAll(dir, 0o700))
	assert.ErrorSays(t, "a closed folder", checkPublic(dir), "other users cannot enter "+dir)
	assert.NoError(t, os.Chmod(dir, 0o755)) // #nosec -- it is for others
	assert.ErrorSays(t, "below a closed folder", checkPublic(dir), "other users cannot enter "+filepath.Dir(dir)+",")
	assert.ErrorSays(t, "an open folder", checkPublic("/tmp"), "")
}

// TestSweepFindsItsOwn checks that a run finds and ends only the processes and files that it has left.
func TestSweepFindsItsOwn(t *testing.T) {
	m := makeMark(t)
	other := startSleep(t, "OTHER=1", t.TempDir())
	marked := startSleep(t, runEnv+"="+m.name, t.TempDir())
	inFolder := startSleep(t, "OTHER=1", m.temp)
	assert.NoError(t, os.Mkdir(filepath.Join(m.temp, "folder"), 0o700))
	left := strings.Join(m.findMarked(), "\n")
	assert.True(t, strings.Contains(left, "folder "+filepath.Join(m.temp, "folder")) && strings.Count(left, "process ") == 2,
		"found\n%s\nwant two processes and a folder", left)
	m.end()
	for name, ended := range map[string]chan error{"marked": marked, "in the folder": inFolder} {
		assert.Eventually(t, "the process "+name+" has ended", func(t testing.TB) error {
			assert.Require(t, len(ended) != 0, "it runs")
			return nil
		})
	}
	assert.True(t, len(other) == 0, "a process of others was ended")
}

func makeMark(t *testing.T) *mark {
	t.Helper()
	m, err := newMark()
	assert.NoError(t, err)
	t.Cleanup(func() { _ = m.remove() })
	return m
}

// startSleep starts a process that ends at the latest with the test. The channel gets the result.
func startSleep(t *testing.T, env, dir string) chan error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "3600")
	cmd.Env, cmd.Dir = []string{env}, dir
	assert.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return ended
}

// TestGroupEndsWithContext checks that the child processes of an interrupted program also end.
func TestGroupEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	started := filepath.Join(t.TempDir(), "started")
	ended := make(chan error, 1)
	go func() {
		_, _, err := runMeasured(exec.CommandContext(ctx, "sh", "-c", "sleep 3600 & touch "+started+"; wait"))
		ended <- err
	}()
	assert.Eventually(t, "the child has started", func(testing.TB) error { _, err := os.Stat(started); return err })
	cancel()
	assert.True(t, <-ended != nil, "an interrupted program has succeeded")
}

func TestHashFollowsContent(t *testing.T) {
	dir := t.TempDir()
	assert.NoError(t, exec.CommandContext(t.Context(), "git", "init", "-q", dir).Run())
	t.Chdir(dir)
	hash := func(files ...string) string {
		for n := 0; n < len(files); n += 2 {
			assert.NoError(t, os.WriteFile(files[n], []byte(files[n+1]), 0o600))
		}
		sum, err := hashPaths(t.Context(), []string{"a", "b"})
		assert.NoError(t, err)
		return sum
	}
	first := hash("a", "1", "b", "2", "c", "3")
	assert.True(t, hash("c", "4") == first, "a file that does not concern the shard changes its hash")
	assert.True(t, hash("b", "3") != first, "a change of a file does not change the hash")
	assert.True(t, hash("a", "", "b", "12") != first, "contents of other files give the same hash")
}

func TestQuarantineIsChecked(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	good := quarantined{"test/suite", "TestQuarantineIsChecked", "an example", "2026-03-02"}
	for name, c := range map[string]struct {
		list []quarantined
		want string
	}{
		"good":         {[]quarantined{good}, ""},
		"last day":     {[]quarantined{{good.of, good.test, good.reason, "2026-03-01"}}, ""},
		"expired":      {[]quarantined{{good.of, good.test, good.reason, "2026-02-28"}}, "cure it"},
		"no date":      {[]quarantined{{good.of, good.test, good.reason, "soon"}}, `"soon"`},
		"too far":      {[]quarantined{{good.of, good.test, good.reason, "2026-06-01"}}, "30 days"},
		"no reason":    {[]quarantined{{good.of, good.test, "", good.expires}}, "without a reason"},
		"no test":      {[]quarantined{{good.of, "TestNothing", good.reason, good.expires}}, "lacks TestNothing"},
		"no package":   {[]quarantined{{"nope", good.test, good.reason, good.expires}}, `"nope"`},
		"five":         {slices.Repeat([]quarantined{good}, maxQuarantined), ""},
		"one too many": {slices.Repeat([]quarantined{good}, maxQuarantined+1), "at most 5"},
	} {
		err := checkQuarantine(c.list, now)
		assert.True(t, (err == nil) == (c.want == "") && (err == nil || strings.Contains(err.Error(), c.want)), "%s: %v, want %q", name, err, c.want)
	}
}
