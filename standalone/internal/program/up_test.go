// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/cmd/drover-controller/app"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/doctor"
	"cloudnative.tw/drover/standalone/internal/runstate"
	"cloudnative.tw/drover/test/assert"
)

// TestUpHelp checks that every flag is under a heading.
func TestUpHelp(t *testing.T) {
	out, err := runDrover(t, "up", "--help")
	assert.NoError(t, err)
	sets := app.GroupFlags(UpFlags())
	other := sets.FlagSets["Other"]
	if other != nil && other.HasFlags() {
		t.Errorf("flags without a heading:\n%s", other.FlagUsages())
	}
	for _, want := range []string{"\nAPI server flags:\n", "--data-dir string", "\nDriver qemu flags:\n", "\nLogging flags:\n", "-v, --verbosity int"} {
		assert.True(t, strings.Contains(out, want), "%q is missing in\n%s", want, out)
	}
	assert.True(t, !strings.Contains(out, "--unsafe-no-fsync"), "hidden flags are shown")
}

// TestSettings checks that the flags of the last run count, and the environment only for a
// Drover that does not run.
func TestSettings(t *testing.T) {
	t.Setenv("DROVER_VM_DRIVER", "fake")
	t.Setenv("DROVER_BIND_ADDRESS", "::1")
	t.Setenv("DOCKER_HOST", "")
	t.Setenv("LD_PRELOAD", "")
	h := doctor.NewHost(datadir.Layout(t.TempDir()), "v1", clock.RealClock{})
	s, err := settingsOf(h)
	if err != nil || s.VMDriver != "fake" || s.BindAddress != "::1" || s.QEMU.Dir != string(h.Layout)+"/drivers/qemu" || s.QEMU.Binary != qemu.DefaultBinary {
		t.Errorf("before the first run: %+v, %v", s, err)
	}
	h.State = &runstate.State{
		Args:        []string{"--vm-driver=qemu,docker", "--qemu-image-dirs=/a", "--qemu-image-dirs=/b", "--flag-of-another-version=1", "--metrics-bind-address=:8080"},
		Environment: map[string]string{"DOCKER_HOST": "unix:///run/other.sock", "LD_PRELOAD": "/evil.so"},
	}
	s, err = settingsOf(h)
	if err != nil || s.VMDriver != "qemu,docker" || s.BindAddress != "::1" || len(s.QEMU.ImageDirs) != 2 || s.Addresses["--metrics-bind-address"] != ":8080" {
		t.Errorf("after a run: %+v, %v", s, err)
	}
	assert.True(t, os.Getenv("DOCKER_HOST") == "unix:///run/other.sock" && os.Getenv("LD_PRELOAD") == "",
		"the environment got DOCKER_HOST=%s, LD_PRELOAD=%s", os.Getenv("DOCKER_HOST"), os.Getenv("LD_PRELOAD"))
	h.PID = 1
	s, err = settingsOf(h)
	assert.True(t, err == nil && s.BindAddress == "127.0.0.1", "during a run: %+v, %v", s, err)
	t.Setenv("DROVER_PORT", "many")
	h.PID = 0
	assert.ErrorSays(t, "of a wrong variable", assert.ErrorOf(settingsOf(h)), "DROVER_PORT")
}

// TestLateStreams checks what streams are answered before the controller serves them.
func TestLateStreams(t *testing.T) {
	t.Parallel()
	late := &LateStreams{}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	before := httptest.NewRecorder()
	late.ServeHTTP(before, request)
	assert.True(t, before.Code == http.StatusServiceUnavailable && before.Header().Get("Retry-After") != "",
		"before, the answer is %d, Retry-After %q", before.Code, before.Header().Get("Retry-After"))
	late.Set(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	after := httptest.NewRecorder()
	late.ServeHTTP(after, request)
	assert.Equal(t, "after, the answer", after.Code, http.StatusTeapot)
}

// TestHelpFits checks that the help of every command has at most 80 columns. It leaves out
// drover kubectl, whose help is kubectl's.
func TestHelpFits(t *testing.T) { checkHelp(t, Program{}.newRootCommand()) }

func checkHelp(t *testing.T, c *cobra.Command) {
	t.Helper()
	var out bytes.Buffer
	c.SetOut(&out)
	err := c.Help()
	assert.True(t, err == nil && out.Len() != 0, "%s prints %q, %v", c.CommandPath(), out.String(), err)
	for line := range strings.Lines(out.String()) {
		line = strings.TrimRight(line, "\n")
		assert.True(t, utf8.RuneCountInString(line) <= 80, "%s --help: %d columns: %s", c.CommandPath(), utf8.RuneCountInString(line), line)
	}
	for _, sub := range c.Commands() {
		if sub.Name() != "kubectl" && !sub.Hidden {
			checkHelp(t, sub)
		}
	}
}

// TestLongDataDir checks that a folder below which sockets have too long paths is refused before
// anything is started, with a way out.
func TestLongDataDir(t *testing.T) {
	t.Parallel()
	o := newUpOptions()
	o.DataDir, o.Controller.VMDriver = "/"+strings.Repeat("d", 80), "qemu"
	assert.ErrorSays(t, "a long --data-dir", o.completeFlags(&cobra.Command{}), "or by --data-dir of drover up")
}
