// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// testHost is a data dir on which one version of Drover runs after the other.
type testHost struct {
	*testenv.Environment // of the version that runs

	t                             testing.TB
	dir, plain, other, fail, qemu string
	grace                         int64
}

// qemuWrapper returns a QEMU that starts no machine while a certain file exists.
const qemuWrapper = `#!/bin/sh
case "$*" in
*drover-*) test ! -e %q || { echo "no machine is to start" >&2; exit 1; } ;;
esac
exec %s "$@"
`

func newTestHost(t testing.TB) *testHost {
	t.Helper()
	temp := framework.PublicDir(t)
	h := &testHost{t: t, dir: filepath.Join(temp, "d"), fail: filepath.Join(temp, "fail"), qemu: filepath.Join(temp, "qemu"), grace: 30}
	t.Cleanup(func() {
		for pid := range h.processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	images := filepath.Join(temp, "images")
	h.must(os.Mkdir(images, 0o700))
	h.plain, h.other = framework.BuildBootGuest(t, images, "A", false), framework.BuildBootGuest(t, images, "B", false)
	h.must(os.WriteFile(h.qemu, fmt.Appendf(nil, qemuWrapper, h.fail, framework.QEMUBinary(t)), 0o755))
	return h
}

func (h *testHost) must(err error) {
	h.t.Helper()
	assert.NoError(h.t, err)
}

// runVersion stops the running Drover, and starts a version on the same data dir. It
// returns once that version has observed every VM.
func (h *testHost) runVersion(binary string) {
	h.t.Helper()
	if h.Environment != nil {
		h.must(h.Stop())
	}
	env, err := testenv.NewWith(framework.ClusterOptions{
		DataDir: h.dir, WithController: true, Binary: binary,
		Args: []string{
			"--vm-driver", "docker,qemu,fake", "--docker-image", framework.GuestPlain, "--qemu-accel", "tcg",
			"--qemu-binary", h.qemu, "--qemu-image-dirs", filepath.Dir(h.plain), "--orphan-grace", "1s", "--list-period", "2s",
		},
	})
	h.must(err)
	h.Environment = env
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Logf("%s up printed:\n%s", binary, env.Output())
		}
		if err := env.Close(); err != nil {
			h.t.Error(err)
		}
	})
	h.waitUntilObserved()
}

// newVM returns a VM that is named after its final state.
func (h *testHost) newVM(driver, state string) *framework.VMBuilder {
	vm := framework.NewVM(driver+"-"+state).Driver(driver).GracePeriod(h.grace).
		Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "32M").RestartPolicy(api.RestartOnFailure)
	if driver == "qemu" {
		vm = vm.Image(h.plain)
	}
	return vm
}

// crashServer makes a driver's server exit with a failure.
func (h *testHost) crashServer(driver string) {
	h.t.Helper()
	vm := h.getVM(driver + "-exited")
	uid := vm.UID
	switch driver {
	case "docker":
		_, err := framework.DockerClient(h.t).ContainerKill(h.t.Context(), testenv.InspectServer(h.t, vm).ID, client.ContainerKillOptions{Signal: "KILL"})
		h.must(err)
	case "qemu":
		h.waitForBanner("qemu-exited", "drover guest 1 A")
		conn, err := (&net.Dialer{}).DialContext(h.t.Context(), "unix", h.machineFile(uid, "serial.sock"))
		h.must(err)
		_, err = conn.Write([]byte("p")) // panics
		h.must(err)
		h.must(conn.Close())
	case "fake":
		path := filepath.Join(h.dir, "drivers", "fake", string(uid)+".json")
		record := readJSON(h.t, path)
		record["state"], record["exit"] = "Stopped", map[string]any{"code": 3, "at": time.Now()}
		content, err := json.Marshal(record)
		h.must(err)
		h.must(os.WriteFile(path+".new", content, 0o600))
		h.must(os.Rename(path+".new", path))
	}
}

func readJSON(t testing.TB, path string) map[string]any {
	t.Helper()
	content, err := os.ReadFile(path)
	assert.NoError(t, err)
	var record map[string]any
	assert.NoError(t, json.Unmarshal(content, &record))
	return record
}

// machineFile returns the path of a machine's file.
func (h *testHost) machineFile(uid types.UID, file string) string {
	return filepath.Join(h.dir, "drivers", "qemu", "vms", string(uid), file)
}

// waitForBanner waits until the guest has printed its banner, which counts the boots of its
// disk.
func (h *testHost) waitForBanner(name, banner string) {
	h.t.Helper()
	path := h.machineFile(h.getVM(name).UID, "serial.log")
	assert.Eventually(h.t, name+" prints "+banner, func(testing.TB) error {
		content, err := os.ReadFile(path)
		if err == nil && !strings.Contains(string(content), banner) {
			err = fmt.Errorf("it printed %q", content)
		}
		return err
	})
}

func (h *testHost) isStartAttempted(name string) bool {
	_, err := os.Stat(h.fail)
	return err == nil && name == "qemu-half"
}

func (h *testHost) failStarts(fail bool) {
	h.t.Helper()
	if !fail {
		h.must(os.Remove(h.fail))
		return
	}
	h.must(os.WriteFile(h.fail, nil, 0o600))
}

// serverSummary returns for every VM what its server is, and for every engine what it
// contains. It omits a machine that cannot start and is retried.
func (h *testHost) serverSummary() map[string]string {
	h.t.Helper()
	found := map[string]string{}
	for _, vm := range h.listVMs() {
		if h.isStartAttempted(vm.Name) {
			continue
		}
		id := ""
		if vm.Status.Server != nil {
			id = vm.Status.Server.ID
		}
		found[vm.Name] = fmt.Sprintf("%s, server %s, %d restarts", vm.Status.Phase, id, vm.Status.RestartCount)
	}
	found["engine docker"] = h.dockerSummary()
	found["engine qemu"] = h.recordSummary("qemu/vms/*/server.json", "qemu/retained/*/server.json", "id", "name", "run", "startedAt") + h.processSummary()
	found["engine fake"] = h.recordSummary("fake/*.json", "fake/retained/*.json", "id", "name", "run", "startedAt", "state")
	return found
}

func (h *testHost) dockerSummary() string {
	var lines []string
	for _, c := range h.ListClusterContainers(h.t) {
		is := testenv.InspectContainer(h.t, c.ID)
		lines = append(lines, fmt.Sprintf("%s %s %s, process %d, since %s, %d restarts;\n  ",
			is.Name, c.ID[:12], is.State.Status, is.State.Pid, is.State.StartedAt, is.RestartCount))
	}
	return joinSorted(lines)
}

func joinSorted(lines []string) string {
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// recordSummary returns what files of the data dir say about servers.
func (h *testHost) recordSummary(vms, retained string, fields ...string) string {
	var lines []string
	for _, pattern := range []string{vms, retained} {
		paths, err := filepath.Glob(filepath.Join(h.dir, "drivers", pattern))
		h.must(err)
		for _, path := range paths {
			record := readJSON(h.t, path)
			if h.isStartAttempted(fmt.Sprint(record["name"])) {
				continue
			}
			line := strings.TrimPrefix(path, h.dir)
			for _, field := range fields {
				line += fmt.Sprint(" ", record[field])
			}
			lines = append(lines, line+";\n  ")
		}
	}
	return joinSorted(lines)
}

// processSummary returns the processes that work in the data dir: the machines.
func (h *testHost) processSummary() string {
	var pids []string
	for pid := range h.processes() {
		pids = append(pids, strconv.Itoa(pid))
	}
	slices.Sort(pids)
	return "processes " + strings.Join(pids, " ")
}

func (h *testHost) processes() map[int]string {
	found := map[int]string{}
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		at, err := os.Readlink(link)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		name, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "comm"))
		if err == nil && strings.HasPrefix(at, h.dir+"/") && strings.HasPrefix(string(name), "qemu-system") {
			found[pid] = at
		}
	}
	return found
}
