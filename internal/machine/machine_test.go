// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// folder is a staging folder.
type folder string

func (f folder) Temp() (path string, remove func(), err error) {
	path, err = os.MkdirTemp(string(f), "")
	return path, func() { _ = os.RemoveAll(path) }, err
}

func (f folder) ReplaceVolatile(path string, content []byte) error {
	return os.WriteFile(path, content, 0o600)
}

// wantError checks kind and text of an error.
func wantError(t *testing.T, err, kind error, texts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("got the error %v, want the kind %q", err, kind)
		return
	}
	for _, text := range texts {
		assert.True(t, strings.Contains(err.Error(), text), "got the error %q, want %q in it", err, text)
	}
}

// TestHiddenProcess checks that a QEMU which frees its run lock and leaves its directory, as
// one may that its guest broke out of, is killed before the machine is started again.
func TestHiddenProcess(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "start machines as other users")
	hides := framework.QEMUScript(t, "exec 3>&-; cd /; exec sleep 600")
	users, err := launch.NewUsers(launch.DefaultUser, launch.DefaultUserIDs)
	assert.NoError(t, err)
	m := Machine{Path: t.TempDir(), Mark: "0c6f2f4a-0000-4000-8000-000000000001", Staging: folder(t.TempDir())}
	lock, err := m.ClaimRun()
	assert.NoError(t, err)
	config := launch.MachineConfig{UUID: m.Mark, MAC: launch.NewMAC(), ID: "x", Type: "q35", Accel: AccelTCG, CPUs: 1, MemoryBytes: 16 << 20}
	program := &Program{Name: hides, Users: users, Log: logr.Discard()}
	endpoints, closeAll, err := m.openEndpoints(lock)
	assert.NoError(t, err)
	ended, err := m.startProcess(t.Context(), program, config, endpoints, &launch.Files{})
	closeAll()
	assert.NoError(t, err)
	assert.NoError(t, lock.Close())
	started, err := m.findStarted()
	assert.NoError(t, err)
	assert.Require(t, started != nil && m.PID() == started.PID, "it was not found: %+v", started)
	assert.Eventually(t, "it hides", func(testing.TB) error {
		on, err := m.IsRunning() // a process that another test forks may have the lock for a moment
		if on || proc.HasOption(started.PID, "-uuid", m.Mark) {
			err = errors.Join(err, errors.New("it has its run lock or its command line"))
		}
		return err
	})
	other := m
	other.Mark = "0c6f2f4a-0000-4000-8000-000000000002"
	assert.NoError(t, other.KillStrays(t.Context(), func(pid int) func() {
		t.Errorf("a copy of the folder kills process %d", pid)
		return func() {}
	}))
	found := 0
	assert.NoError(t, m.KillStrays(t.Context(), func(int) func() { found++; return func() {} }))
	how := <-ended
	assert.True(t, found == 1 && how == "signal: killed", "%d were found, and it ended by %s", found, how)
}

func TestBalloonStats(t *testing.T) {
	t.Parallel()
	const none = "18446744073709551615"
	for name, c := range map[string]struct {
		total, free, available string
		updated                int
		used                   int64
		ok                     bool
	}{
		"all":       {"1000", "100", "400", 1, 600, true},
		"old Linux": {"1000", "100", none, 1, 900, true},
		"never":     {none, none, none, 0, 0, false},
		"no total":  {none, "100", "400", 1, 0, false},
		"no rest":   {"1000", none, none, 1, 0, false},
		"nonsense":  {"1000", "100", "1001", 1, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stats balloonStats
			assert.NoError(t, json.Unmarshal(fmt.Appendf(nil,
				`{"last-update": %d, "stats": {"stat-total-memory": %s, "stat-free-memory": %s, "stat-available-memory": %s, "stat-swap-in": 0}}`,
				c.updated, c.total, c.free, c.available), &stats))
			used, ok := stats.usedMemory()
			assert.True(t, used == c.used && ok == c.ok, "used are %d, %v; want %d, %v", used, ok, c.used, c.ok)
		})
	}
}
