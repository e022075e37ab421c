// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
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

	"github.com/moby/moby/api/types/container"
	docker "github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// testHost is a data dir on which one version of Drover runs after the other.
type testHost struct {
	t                             testing.TB
	dir, plain, other, fail, qemu string

	docker  *docker.Client
	cluster *framework.Cluster
	client  client.Client
	grace   int64
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
	t.Cleanup(h.removeRemains)
	h.docker = framework.DockerClient(t)
	images := filepath.Join(temp, "images")
	h.must(os.Mkdir(images, 0o700))
	h.plain, h.other = framework.BuildBootGuest(t, images, "A", false), framework.BuildBootGuest(t, images, "B", false)
	h.must(os.WriteFile(h.qemu, fmt.Appendf(nil, qemuWrapper, h.fail, framework.QEMUBinary(t)), 0o755))
	return h
}

// with returns the host for a part of the test, such as a check.
func (h *testHost) with(t testing.TB) *testHost {
	other := *h
	other.t = t
	return &other
}

func (h *testHost) must(err error) {
	h.t.Helper()
	assert.NoError(h.t, err)
}

// runVersion stops the running Drover, and starts a version on the same data dir. It
// returns once that version has observed every VM.
func (h *testHost) runVersion(binary string) {
	h.t.Helper()
	if h.cluster != nil {
		h.must(h.cluster.Stop())
	}
	c, err := framework.NewCluster(framework.ClusterOptions{
		DataDir: h.dir, WithController: true, Binary: binary,
		Args: []string{
			"--vm-driver", "docker,qemu,fake", "--docker-image", framework.GuestPlain, "--qemu-accel", "tcg",
			"--qemu-binary", h.qemu, "--qemu-image-dirs", filepath.Dir(h.plain), "--orphan-grace", "1s", "--list-period", "2s",
		},
	})
	h.must(err)
	h.cluster = c
	scheme := runtime.NewScheme()
	h.must(api.AddToScheme(scheme))
	h.client, err = client.New(c.Config, client.Options{Scheme: scheme})
	h.must(err)
	h.waitUntilObserved()
}

// newVM returns a VM that is named after its final state.
func (h *testHost) newVM(driver, state string) *api.VirtualMachine {
	vm := framework.NewVM(driver+"-"+state).Namespace("default").Driver(driver).GracePeriod(h.grace).
		Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "32M").RestartPolicy(api.RestartOnFailure)
	if driver == "qemu" {
		vm = vm.Image(h.plain)
	}
	return vm.Obj()
}

// crashServer makes a driver's server exit with a failure.
func (h *testHost) crashServer(driver string) {
	h.t.Helper()
	uid := h.getVM(driver + "-exited").UID
	switch driver {
	case "docker":
		_, err := h.docker.ContainerKill(h.t.Context(), h.listContainers("cloudnative.tw/uid=" + string(uid))[0].ID, docker.ContainerKillOptions{Signal: "KILL"})
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

func (h *testHost) listContainers(label string) []container.Summary {
	h.t.Helper()
	ctx := context.WithoutCancel(h.t.Context()) // it is called at the end too
	all, err := h.docker.ContainerList(ctx, docker.ContainerListOptions{All: true, Filters: docker.Filters{}.Add("label", label)})
	h.must(err)
	return all.Items
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
	cluster, err := os.ReadFile(filepath.Join(h.dir, "cluster-id"))
	h.must(err)
	var lines []string
	for _, c := range h.listContainers("cloudnative.tw/cluster=" + strings.TrimSpace(string(cluster))) {
		is, err := h.docker.ContainerInspect(h.t.Context(), c.ID, docker.ContainerInspectOptions{})
		h.must(err)
		s := is.Container.State
		lines = append(lines, fmt.Sprintf("%s %s %s, process %d, since %s, %d restarts;\n  ", is.Container.Name, c.ID[:12], s.Status, s.Pid, s.StartedAt, is.Container.RestartCount))
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

// removeRemains removes all that the test has created.
func (h *testHost) removeRemains() {
	if h.cluster == nil {
		return
	}
	if h.t.Failed() {
		h.t.Logf("drover up printed:\n%s", h.cluster.Output())
	}
	if err := h.cluster.Close(); err != nil {
		h.t.Error(err)
	}
	for pid := range h.processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if cluster, err := os.ReadFile(filepath.Join(h.dir, "cluster-id")); err == nil {
		for _, c := range h.listContainers("cloudnative.tw/cluster=" + strings.TrimSpace(string(cluster))) {
			testenv.RemoveContainer(h.t, c.ID)
		}
	}
}
