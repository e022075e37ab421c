// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/pod"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		list, says string
		want       []string
	}{
		"auto":              {"auto", "", nil},
		"one":               {"fake", "", []string{"fake"}},
		"several, in order": {"fake, docker", "", []string{"fake", "docker"}},
		"unknown":           {"fake,xen", `"xen" is not a driver; known are docker, qemu, fake, pod, or auto alone`, nil},
		"empty":             {"", `"" is not a driver`, nil},
		"twice":             {"fake,fake", `"fake" is there twice`, nil},
		"auto beside names": {"auto,fake", `"auto" is not a driver`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tc.list)
			assert.ErrorSays(t, "Parse", err, tc.says)
			assert.True(t, slices.Equal(got, tc.want), "got %q, want %q", got, tc.want)
		})
	}
}

func options() Options {
	return Options{
		Settings: DefaultSettings(),
		Environment: driver.Environment{
			ClusterID: "cluster-1", Log: logr.Discard(), Clock: clock.RealClock{}, Registerer: prometheus.NewRegistry(),
			Cluster: &rest.Config{Host: "https://127.0.0.1:1"},
		},
	}
}

func names(opened []Opened) []string {
	var out []string
	for _, o := range opened {
		out = append(out, o.Name)
	}
	return out
}

// TestAuto checks that auto opens a driver whose engine answers, and no simulation where none does: it says which
// engines it has tried, why they do not answer, and how to install each.
func TestAuto(t *testing.T) {
	framework.QEMUBinary(t)
	t.Setenv("DOCKER_HOST", "unix://"+t.TempDir()+"/no-engine.sock")
	o := options()
	own := o.Settings[qemu.Name].(*qemu.Options)
	own.Dir = t.TempDir()
	opened, err := Open(t.Context(), Auto, o)
	assert.True(t, err == nil && slices.Equal(names(opened), []string{"qemu"}), "opened %q, %v", names(opened), err)
	own.Binary = "qemu-of-nowhere"
	opened, err = Open(t.Context(), Auto, o)
	for _, text := range []string{
		"no engine answers", "--vm-driver", "driver docker: ", "no-engine.sock", "sudo apt-get install docker.io",
		"driver qemu: ", "qemu-of-nowhere is not installed", "sudo apt-get install qemu-system-x86",
	} {
		assert.ErrorSays(t, "without engines", err, text)
	}
	assert.True(t, len(opened) == 0 && !strings.Contains(err.Error(), fake.Name), "opened %q, %v", names(opened), err)
}

// TestNamedAlone checks that the drivers which auto leaves out run where they are named.
func TestNamedAlone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{fake.Name, pod.Name} {
		opened, err := Open(t.Context(), name, options())
		assert.True(t, err == nil && slices.Equal(names(opened), []string{name}), "opened %q, %v", names(opened), err)
	}
}

// TestClose checks that Close ends a download, through all decorators of the driver,
// and that nothing of it is left.
func TestClose(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		close(begun)
		<-r.Context().Done()
		close(ended)
	}))
	t.Cleanup(web.Close)
	o := options()
	own := o.Settings[qemu.Name].(*qemu.Options)
	own.Dir, own.Fetch.Hosts = t.TempDir(), []string{"127.0.0.1"}
	opened, err := Open(t.Context(), "qemu,fake", o)
	assert.NoError(t, err)
	s, err := opened[0].Driver.Ensure(t.Context(), driver.ServerSpec{
		Target: driver.Target{UID: uuid.NewUUID(), Epoch: 1}, Namespace: "default", Name: "vm", Power: driver.PowerOn,
		CPUMilli: 1000, MemoryBytes: 16 << 20, Image: driver.Image{Source: web.URL, Checksum: "sha256:" + strings.Repeat("0", 64)},
	})
	assert.Require(t, err == nil && s.State == driver.StatePending, "it is %+v, %v", s, err)
	<-begun
	assert.ReportError(t, Close(t.Context(), opened))
	<-ended
	left, err := os.ReadDir(filepath.Join(own.Dir, "tmp"))
	assert.True(t, err == nil && len(left) == 0, "left behind: %v, %v", left, err)
}

// TestNamed checks that a driver that was named is opened even if its engine does not
// answer, and keeps its position.
func TestNamed(t *testing.T) {
	t.Setenv("DOCKER_HOST", "unix://"+t.TempDir()+"/no-engine.sock")
	opened, err := Open(t.Context(), "docker,fake", options())
	assert.Require(t, err == nil && slices.Equal(names(opened), []string{"docker", "fake"}), "opened %q, %v", names(opened), err)
	assert.ErrorIs(t, "list without an engine", assert.ErrorOf(opened[0].Driver.List(t.Context())), driver.ErrUnavailable)
	for _, o := range opened {
		_, ok := driver.As[driver.Identifier](o.Driver)
		assert.True(t, ok, "%s does not report its engine's id", o.Name)
	}
}

func TestOpenRefuses(t *testing.T) {
	o := options()
	o.Settings[fake.Name].(*fake.Options).BootTime = -1
	assert.ErrorSays(t, "Open", assert.ErrorOf(Open(t.Context(), "fake", o)), "negative")
}
