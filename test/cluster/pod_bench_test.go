// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
)

const (
	// maxStartRatio and maxOverhead are the aims of the benchmark.
	maxStartRatio, maxOverhead = 1.15, 40 // MB
	// memoryGuests is for how many guests the memory of their pods is measured.
	memoryGuests = 3
	// copyRuns is the number of copied disks: a node has as many volumes, for one pod each.
	copyRuns, copyBytes = 3, 256 << 20
	copiedImage         = "drover.test/copied:1"
)

var rounds = flag.Int("rounds", 0, "how often TestBenchmarkPods measures a VM beside bare pods; 0 skips it")

// start has the times at which a watch saw the steps of a start. For a pod that was not created by
// Drover, Running is the last step.
type start struct {
	Requested, Created, Bound, Running, Active time.Time
}

// podBench measures how VirtualMachines of driver pod start, compared with bare pods.
type podBench struct {
	*podWorld
	pods   *bench.Log[*corev1.Pod]
	vmsLog *bench.Log[*api.VirtualMachine]
	// copied is the pod of a VirtualMachine, without the parts that only Drover needs.
	copied *corev1.Pod
	report *bench.Report
}

// TestBenchmarkPods measures the overhead of a VM of driver pod over a bare pod: time, memory, and the
// copy of its image to a persistent disk. make bench-cluster runs it.
func TestBenchmarkPods(t *testing.T) {
	if *rounds < 1 {
		t.Skip("-rounds is not set: it is for make bench-cluster")
	}
	b := newPodBench(t)
	b.measureStarts(t, *rounds)
	b.measureMemory(t)
	b.measureCopies(t)
	t.Log(b.report)
}

func newPodBench(t *testing.T) *podBench {
	t.Helper()
	b := &podBench{podWorld: newPodWorld(t), report: bench.NewReport()}
	var err error
	b.pods, err = bench.StartLog[*corev1.Pod](t.Context(), cache.NewListWatchFromClient(
		shared.Client.CoreV1().RESTClient(), "pods", podNamespace, fields.Everything()))
	if err == nil {
		b.vmsLog, err = bench.StartLog[*api.VirtualMachine](t.Context(), bench.WatchVMs(b.vms))
	}
	assert.NoError(t, err)
	b.startVM(t, "first", b.copyPod)
	return b
}

// copyPod stores what a bare pod needs to run the same machine: the spec of the VirtualMachine's pod,
// its description and its Secret.
func (b *podBench) copyPod(t *testing.T, from *corev1.Pod) {
	secrets := shared.Client.CoreV1().Secrets(podNamespace)
	b.copied = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: from.Annotations}, Spec: *from.Spec.DeepCopy()}
	b.copied.Spec.NodeName = ""
	for i := range b.copied.Spec.Volumes {
		volume := b.copied.Spec.Volumes[i].Secret
		if volume == nil {
			continue
		}
		secret, err := secrets.Get(t.Context(), volume.SecretName, metav1.GetOptions{})
		if err == nil {
			secret, err = secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "copied"}, Data: secret.Data}, metav1.CreateOptions{})
		}
		assert.NoError(t, err)
		volume.SecretName = secret.Name
	}
}

// newBarePod returns a pod of the same image that runs QEMU without a machine. Without a token it
// mounts no volume.
func (b *podBench) newBarePod(hasToken bool) *corev1.Pod {
	pod := b.copied.DeepCopy()
	pod.Spec.Volumes, pod.Spec.AutomountServiceAccountToken = nil, &hasToken
	c := &pod.Spec.Containers[0]
	c.VolumeMounts, c.Ports = nil, nil
	c.Command, c.Args = []string{"/usr/bin/qemu-system-x86_64"}, []string{"-machine", "none", "-nodefaults", "-display", "none"}
	return pod
}

// newBenchVM returns a VM that ends within a second.
func (b *podBench) newBenchVM(name string) *framework.VMBuilder {
	return b.newVM(name, "100m", "192Mi").Resource(api.ResourceRootDisk, "64Mi").
		Port("http", 80, 0).GracePeriod(1).Spec(func(spec *api.VirtualMachineSpec) {
		spec.Ephemeral, spec.Image = true, linuxImage()
	})
}

// startVM measures the start of a VM, and deletes it.
func (b *podBench) startVM(t *testing.T, name string, look func(*testing.T, *corev1.Pod)) start {
	t.Helper()
	from := b.vmsLog.Len()
	isPod := func(p *corev1.Pod) bool { return p.Labels["cloudnative.tw/name"] == name }
	return b.measureStart(t, isPod, func() error {
		_, err := b.vms.Create(t.Context(), b.newBenchVM(name).Obj(), metav1.CreateOptions{})
		return err
	}, func(s *start, pod *corev1.Pod) {
		active, err := b.vmsLog.Await(t.Context(), from, func(e bench.Event[*api.VirtualMachine]) bool {
			return e.Object.Name == name && e.Object.Status.Phase == api.PhaseActive
		})
		assert.NoError(t, err)
		s.Active = active.At
		if look != nil {
			look(t, pod)
		}
		(&guest{podWorld: b.podWorld, name: name}).delete(t)
	})
}

// startPod measures the start of a pod, and deletes it.
func (b *podBench) startPod(t *testing.T, name string, pod *corev1.Pod) start {
	t.Helper()
	pod = pod.DeepCopy()
	pod.Name, pod.Namespace = name, podNamespace
	return b.measureStart(t, func(p *corev1.Pod) bool { return p.Name == name }, func() error {
		_, err := shared.Client.CoreV1().Pods(podNamespace).Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	}, func(s *start, _ *corev1.Pod) {
		s.Active = s.Running
		deletePod(t, pod)
	})
}

// measureStart records the steps of a pod from create until end has deleted it.
func (b *podBench) measureStart(t *testing.T, isPod func(*corev1.Pod) bool, create func() error, end func(*start, *corev1.Pod)) (s start) {
	t.Helper()
	from := b.pods.Len()
	s.Requested = time.Now()
	assert.NoError(t, create())
	end(&s, b.awaitSteps(t, &s, from, isPod))
	b.awaitPod(t, from, "is gone", func(e bench.Event[*corev1.Pod]) bool { return isPod(e.Object) && e.Type == watch.Deleted })
	return s
}

// awaitSteps waits for a pod's steps, and records when they were seen.
func (b *podBench) awaitSteps(t *testing.T, s *start, from int, isPod func(*corev1.Pod) bool) (pod *corev1.Pod) {
	t.Helper()
	for _, step := range []struct {
		at   *time.Time
		what string
		done func(*corev1.Pod) bool
	}{
		{&s.Created, "is created", func(*corev1.Pod) bool { return true }},
		{&s.Bound, "has a node", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" }},
		{&s.Running, "runs", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }},
	} {
		e := b.awaitPod(t, from, step.what, func(e bench.Event[*corev1.Pod]) bool {
			return e.Type != watch.Deleted && isPod(e.Object) && step.done(e.Object)
		})
		*step.at, pod = e.At, e.Object
	}
	return pod
}

func (b *podBench) awaitPod(t *testing.T, from int, what string, match func(bench.Event[*corev1.Pod]) bool) bench.Event[*corev1.Pod] {
	t.Helper()
	e, err := b.pods.Await(t.Context(), from, match)
	if err != nil {
		last, _ := b.pods.Last()
		t.Fatalf("no pod %s: %v; the last event is %+v", what, err, last.Object)
	}
	return e
}

// barePods are the pods with which a VM is compared. The aim is relative to the first.
var barePods = []string{"bare pod of its image", "the same without a volume", "bare pod of its spec"}

// startFigures are the components and the parts of a start that each took, and the whole start.
var startFigures = []struct {
	what string
	took func(start) time.Duration
}{
	{"request to pod, by the API server and Drover", func(s start) time.Duration { return s.Created.Sub(s.Requested) }},
	{"to a node, by the scheduler", func(s start) time.Duration { return s.Bound.Sub(s.Created) }},
	{"to Running, by the kubelet", func(s start) time.Duration { return s.Running.Sub(s.Bound) }},
	{"to Active, by Drover", func(s start) time.Duration { return s.Active.Sub(s.Running) }},
	{"creation to Active, of a pod to Running", func(s start) time.Duration { return s.Active.Sub(s.Requested) }},
}

// measureStarts starts a VM and bare pods in turn, in changing order: a pod of the same image as by
// kubectl run, a pod without mounts, and a pod with the VM's spec.
func (b *podBench) measureStarts(t *testing.T, rounds int) {
	t.Helper()
	var vms []start
	pods := make([][]start, len(barePods))
	contenders := []bench.Contender{func(turn int) error {
		vms = append(vms, b.startVM(t, fmt.Sprintf("round-%d", turn), nil))
		return nil
	}}
	for kind, pod := range []*corev1.Pod{b.newBarePod(true), b.newBarePod(false), b.copied} {
		contenders = append(contenders, func(turn int) error {
			pods[kind] = append(pods[kind], b.startPod(t, fmt.Sprintf("round-%d-%d", turn, kind), pod))
			return nil
		})
	}
	assert.NoError(t, bench.TakeTurns(rounds, contenders...))
	for kind, name := range barePods {
		for _, f := range startFigures {
			of := func(s start) float64 { return bench.Milliseconds(f.took(s)) }
			row := b.report.AddRow(f.what, 1, "ms", bench.Figures(vms, of)...).CompareWith(name, bench.Figures(pods[kind], of)...)
			if kind == 0 && f.what == startFigures[len(startFigures)-1].what {
				row.RatioAtMost(maxStartRatio)
			}
		}
	}
}

// measureMemory measures the resident memory of the processes around a booted guest: all processes of
// its pod except QEMU, and the shim of containerd.
func (b *podBench) measureMemory(t *testing.T) {
	t.Helper()
	sizes := map[string][]float64{}
	for n := range memoryGuests {
		g := b.createGuest(t, fmt.Sprintf("memory-%d", n), func(spec *api.VirtualMachineSpec) { spec.Ephemeral = true })
		others := 0.0
		for name, size := range residentOf(t, g.pod(t)) {
			sizes[name] = append(sizes[name], size)
			if name != qemuProcess {
				others += size
			}
		}
		sizes["all but QEMU"] = append(sizes["all but QEMU"], others)
		g.delete(t)
	}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		row := b.report.AddRow("resident: "+name, 1, "MB", sizes[name]...)
		if name == "all but QEMU" {
			row.PercentileAtMost(100, maxOverhead)
		}
	}
}

// Names of the processes around a guest, as truncated by the kernel.
const (
	qemuProcess = "qemu-system-x86"
	shimProcess = "containerd-shim"
)

// residentOf returns the resident memory of a pod's processes and of their shim, by name, in MB. Shared
// memory counts for each process.
func residentOf(t *testing.T, pod *corev1.Pod) map[string]float64 {
	t.Helper()
	all, err := procfs.AllProcs()
	assert.NoError(t, err)
	sizes, inPod, parents := map[string]float64{}, map[int]bool{}, map[int]bool{}
	add := func(p procfs.Proc) {
		name, err := p.Comm()
		memory, memoryErr := bench.MemoryOf(p.PID)
		assert.NoError(t, errors.Join(err, memoryErr))
		sizes[name] += bench.Megabytes(memory.Resident)
	}
	for _, p := range all {
		groups, _ := p.Cgroups()
		stat, err := p.Stat()
		isIn := func(g procfs.Cgroup) bool { return strings.Contains(g.Path, "pod"+string(pod.UID)) }
		if err != nil || !slices.ContainsFunc(groups, isIn) {
			continue
		}
		inPod[p.PID], parents[stat.PPID] = true, true
		add(p)
	}
	for pid := range parents {
		if !inPod[pid] {
			shim, err := procfs.NewProc(pid)
			assert.NoError(t, err)
			add(shim)
		}
	}
	for _, name := range []string{qemuProcess, "drover-machine", "pause", shimProcess} {
		assert.Require(t, sizes[name] != 0, "the processes of %s are %v, without %s", pod.Name, sizes, name)
	}
	return sizes
}

// measureCopies measures the copy of an image to the disk at the first start, compared with a plain
// copy of the same file.
func (b *podBench) measureCopies(t *testing.T) {
	t.Helper()
	node := shared.Node(1)
	image := importCopied(t, node)
	var copies, floor []float64
	for n := range copyRuns {
		floor = append(floor, bench.Milliseconds(copyPlainly(t, image, filepath.Join(node.Dir, "copy"))))
		copies = append(copies, bench.Milliseconds(b.copyToClaim(t, fmt.Sprintf("copied-%d", n), node)))
	}
	b.report.AddRow(fmt.Sprintf("%d MiB to the root disk of a VM", copyBytes>>20), 1, "ms", copies...).
		CompareWith("a plain program, with a sync", floor...)
}

// importCopied imports an image with a disk without holes on a node, and returns the disk's path.
func importCopied(t *testing.T, node *cluster.Node) string {
	t.Helper()
	dir := t.TempDir()
	guest := framework.BuildLinuxGuest(t, dir)
	disk := filepath.Join(dir, "disk.img")
	content := make([]byte, copyBytes)
	_, _ = rand.Read(content)
	copy(content[510:], "\x55\xaa") // the signature of a boot sector
	assert.NoError(t, os.WriteFile(disk, content, 0o600))
	importImage(t, node, copiedImage, map[string]string{"vmlinuz": guest.Kernel, "initrd": guest.Initrd, "disk/disk.img": disk})
	return disk
}

// copyPlainly copies a file and syncs the copy.
func copyPlainly(t *testing.T, from, to string) time.Duration {
	t.Helper()
	begun := time.Now()
	in, err := os.Open(from)
	assert.NoError(t, err)
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	assert.NoError(t, err)
	_, err = io.Copy(out, in)
	assert.NoError(t, errors.Join(err, out.Sync(), out.Close()))
	took := time.Since(begun)
	assert.NoError(t, os.Remove(to))
	return took
}

// copyToClaim starts a VM with a persistent disk, and reads the time of the copy from the log.
func (b *podBench) copyToClaim(t *testing.T, name string, node *cluster.Node) time.Duration {
	t.Helper()
	g := &guest{podWorld: b.podWorld, name: name}
	// With a tenth of a CPU, the test would measure the CPU quota.
	vm := b.newBenchVM(name).Resource(api.ResourceCPU, "1").Resource(api.ResourceRootDisk, "300Mi").Spec(func(spec *api.VirtualMachineSpec) {
		spec.Ephemeral, spec.Image.Source = false, "oci://"+copiedImage
		spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name}
	}).Obj()
	assert.NoError(t, assert.ErrorOf(b.vms.Create(t.Context(), vm, metav1.CreateOptions{})))
	var took time.Duration
	assert.Eventually(t, "QEMU was started", func(t testing.TB) error {
		pod, err := g.findPod(t)
		if err != nil || pod == nil {
			return fmt.Errorf("there is no pod: %w", err)
		}
		log, err := shared.PodLog(t.Context(), podNamespace, pod.Name)
		if err != nil {
			return err
		}
		took, err = between(log, "Making a disk", "QEMU was started")
		return err
	})
	g.delete(t)
	return took
}

// between returns the time between two lines of a log, by their timestamps.
func between(log, first, last string) (time.Duration, error) {
	var times []time.Time
	for _, text := range []string{first, last} {
		before, _, ok := strings.Cut(log, text)
		_, stamp, hasTime := strings.Cut(before[strings.LastIndexByte(before, '\n')+1:], "time=")
		if !ok || !hasTime {
			return 0, fmt.Errorf("the log has no %q: %s", text, log)
		}
		at, err := time.Parse(time.RFC3339Nano, strings.Fields(stamp)[0])
		if err != nil {
			return 0, err
		}
		times = append(times, at)
	}
	return times[1].Sub(times[0]), nil
}
