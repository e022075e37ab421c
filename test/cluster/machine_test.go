// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	sigsyaml "sigs.k8s.io/yaml"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

const (
	machineNamespace = "machines"
	machineImage     = "drover.test/drover-machine:1"
	guestImage       = "drover.test/guest:1"
	machineUUID      = "5d0f0b0e-3a5c-4b7e-9d58-1f6a2c9e7b10"
	// keptFinalizer keeps a pod that is deleted until the test has seen how it ended.
	keptFinalizer = "drover.test/kept"
	// maxMachineRSS is how much memory drover-machine itself may take.
	maxMachineRSS = 20 << 20
)

// machineDescription is what drover-machine reads: a Linux guest whose disk is a copy of an
// image, which counts its boots there.
const machineDescription = `
version: 1
uuid: ` + machineUUID + `
name: web
cpus: 1
memoryBytes: 201326592
accelerator: tcg
rootDisk: {folder: /disk, image: /image/disk, sizeBytes: 67108864}
kernel: {file: /image/vmlinuz, initrd: /image/initrd, cmdline: console=ttyS0 quiet panic=-1}
forwards: [{port: 80}]
cloudInit: /cloud-init
gracePeriodSeconds: 60
`

// isMachineImported is set once all nodes have the images. No test is parallel to another.
var isMachineImported bool

// importMachine builds the images of drover-machine and of a guest, and gives them to all nodes,
// once for all tests.
func importMachine(t *testing.T) {
	t.Helper()
	if isMachineImported {
		return
	}
	root, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	printed, _ := framework.MustRunCommand(t, framework.BuildTimeout, nil, filepath.Join(root, "hack", "machine-root.sh"))
	dir, qemu := t.TempDir(), strings.TrimSpace(printed)
	framework.MustRunCommand(t, framework.BuildTimeout, nil, "go", "-C", filepath.Join(root, "hack", "image"), "run", ".",
		"--out", dir, "--tag", machineImage, "--program", "drover-machine", "--root", filepath.Join(qemu, "root"), "--packages", filepath.Join(qemu, "packages"))
	guest := framework.BuildLinuxGuest(t, dir)
	files := map[string]string{"vmlinuz": guest.Kernel, "initrd": guest.Initrd, "disk/boot.img": framework.BuildBootGuest(t, dir, "A", false)}
	assert.NoError(t, cluster.WriteImage(filepath.Join(dir, "guest.tar"), guestImage, files, "/none"))
	for _, archive := range []string{"drover-machine-linux-amd64.tar", "guest.tar"} {
		assert.NoError(t, shared.ImportImage(t.Context(), filepath.Join(dir, archive)))
	}
	isMachineImported = true
}

// machineExample is examples/drover-machine/pod.yaml, whose pod is changed to run the test's guest.
type machineExample struct {
	config corev1.ConfigMap
	secret corev1.Secret
	claim  corev1.PersistentVolumeClaim
	pod    corev1.Pod
}

func readMachineExample(t *testing.T, node *cluster.Node) *machineExample {
	t.Helper()
	root, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	file, err := os.Open(filepath.Join(root, "examples", "drover-machine", "pod.yaml"))
	assert.NoError(t, err)
	defer func() { _ = file.Close() }()
	var e machineExample
	documents := yaml.NewYAMLReader(bufio.NewReader(file))
	for _, object := range []any{&e.config, &e.secret, &e.claim, &e.pod} {
		document, err := documents.Read()
		if err == nil {
			err = sigsyaml.UnmarshalStrict(document, object)
		}
		assert.NoError(t, err)
	}
	e.config.Data["machine.yaml"] = machineDescription
	e.pod.Finalizers = []string{keptFinalizer}
	e.pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name}
	e.pod.Spec.Containers[0].Image, e.pod.Spec.Containers[0].ImagePullPolicy = machineImage, corev1.PullNever
	for i, volume := range e.pod.Spec.Volumes {
		if volume.Image != nil {
			e.pod.Spec.Volumes[i].Image = &corev1.ImageVolumeSource{Reference: guestImage, PullPolicy: corev1.PullNever}
		}
	}
	return &e
}

// createNamespace makes a namespace in which only restricted pods run, with what the pod needs.
func (e *machineExample) createNamespace(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	core := shared.Client.CoreV1()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: machineNamespace}}
	namespace.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	_, err := core.Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	t.Cleanup(func() {
		if err := core.Namespaces().Delete(ctx, machineNamespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if err == nil {
		_, err = core.ConfigMaps(machineNamespace).Create(ctx, &e.config, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = core.Secrets(machineNamespace).Create(ctx, &e.secret, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = core.PersistentVolumeClaims(machineNamespace).Create(ctx, &e.claim, metav1.CreateOptions{})
	}
	assert.NoError(t, err)
}

// console is what a machine prints, as kubectl logs -f shows it.
type console struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(p)
}

// line waits for a text, and returns the line that it is in.
func (c *console) line(t *testing.T, text string) (line string) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("the console shows %q", text), func(testing.TB) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for line = range strings.Lines(c.text.String()) {
			if strings.Contains(line, text) {
				return nil
			}
		}
		return fmt.Errorf("it shows %s", c.text.String())
	})
	return strings.TrimSpace(line)
}

// run creates the pod of the Linux guest and returns its console once the guest is up.
func (e *machineExample) run(t *testing.T, name string, boots int) *console {
	t.Helper()
	return e.runUntil(t, name, fmt.Sprintf("drover linux guest %d is up", boots))
}

// runUntil creates a machine's pod and returns its console once that shows a text.
func (e *machineExample) runUntil(t *testing.T, name, text string) *console {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	pods := shared.Client.CoreV1().Pods(machineNamespace)
	e.pod.Name = name
	if _, err := pods.Create(ctx, &e.pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // also of a test that failed, whose namespace would stay
		_ = pods.Delete(ctx, name, metav1.DeleteOptions{})
		_, _ = pods.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	})
	begun := time.Now()
	assert.Eventually(t, name+" runs", func(testing.TB) error {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err == nil && pod.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("its status is %+v", pod.Status)
		}
		return err
	})
	c := &console{}
	go func() { _ = followLog(ctx, name, c) }()
	c.line(t, text)
	t.Logf("%s was up after %v", name, time.Since(begun).Round(time.Millisecond))
	return c
}

func followLog(ctx context.Context, name string, to *console) error {
	stream, err := shared.Client.CoreV1().Pods(machineNamespace).GetLogs(name, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	_, err = io.Copy(to, stream)
	return err
}

// checkMachineEnd checks how the container of a machine has ended.
func checkMachineEnd(t *testing.T, name string, code int32, message string) {
	t.Helper()
	assert.Eventually(t, name+" has ended", func(t testing.TB) error {
		pod, err := shared.Client.CoreV1().Pods(machineNamespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Terminated == nil {
			return errors.New("it runs")
		}
		ended := pod.Status.ContainerStatuses[0].State.Terminated
		if ended.ExitCode != code || !strings.Contains(ended.Message, message) {
			t.Errorf("%s ended with %d, %q, want %d, %q", name, ended.ExitCode, ended.Message, code, message)
		}
		return nil
	})
}

// processOf returns a process of this host by its name and a text of its command line.
func processOf(t testing.TB, name, argument string) int {
	t.Helper()
	pid, ok := findProcess(name, argument)
	if !ok {
		t.Fatalf("no process %s %s runs", name, argument)
	}
	return pid
}

func findProcess(name, argument string) (pid int, ok bool) {
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range names {
		comm, _ := os.ReadFile(path)
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if strings.HasPrefix(string(comm), name) && bytes.Contains(line, []byte(argument)) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return pid, err == nil
		}
	}
	return 0, false
}

// checkMachineRSS checks how much memory drover-machine takes, which is QEMU's parent.
func checkMachineRSS(t *testing.T, qemu int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", qemu))
	assert.NoError(t, err)
	parent := statusField(t, string(status), "PPid:")
	status, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", parent))
	if err != nil || !strings.Contains(string(status), "drover-machine") {
		t.Fatalf("the parent of QEMU is %s, %v", status, err)
	}
	rss := statusField(t, string(status), "VmRSS:") << 10
	t.Logf("drover-machine has %d bytes resident", rss)
	if rss > maxMachineRSS {
		t.Errorf("drover-machine has %d bytes resident, at most %d are allowed", rss, maxMachineRSS)
	}
}

func statusField(t *testing.T, status, name string) int {
	t.Helper()
	_, rest, _ := strings.Cut(status, "\n"+name)
	value, err := strconv.Atoi(strings.Fields(rest + " none")[0])
	if err != nil {
		t.Fatalf("%s in %s: %v", name, status, err)
	}
	return value
}

// TestMachine runs drover-machine in restricted pods: a guest that another pod reaches, that a
// deletion shuts down, and whose disk later pods have again.
func TestMachine(t *testing.T) {
	tier.Full(t, "TestPodDriver runs drover-machine in restricted pods too")
	node := shared.Node(1)
	importMachine(t)
	example := readMachineExample(t, node)
	example.createNamespace(t)
	testDeletion(t, example)
	example.run(t, "second", 2)
	assert.NoError(t, syscall.Kill(processOf(t, "qemu-system", machineUUID), syscall.SIGKILL))
	checkMachineEnd(t, "second", 5, `"reason":"Killed","message":"QEMU ended with signal: killed`)
	releasePod(t, "second")
	testAttach(t, example)
}

// waitReady waits until the kubelet's probe has found that the guest answers.
func waitReady(t *testing.T, name string) {
	t.Helper()
	assert.Eventually(t, name+" is ready", func(t testing.TB) error {
		pod, err := shared.Client.CoreV1().Pods(machineNamespace).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			err = fmt.Errorf("its conditions are %+v", pod.Status.Conditions)
		}
		return err
	})
}

func testDeletion(t *testing.T, example *machineExample) {
	client := runPod(t, "machine-client", shared.Node(2))
	console := example.run(t, "first", 1)
	pods := shared.Client.CoreV1().Pods(machineNamespace)
	pod, err := pods.Get(t.Context(), "first", metav1.GetOptions{})
	assert.NoError(t, err)
	waitReady(t, "first")
	got := get(t, client.Name, "http://"+pod.Status.PodIP)
	for _, want := range []string{`"boots":1`, `"size":67108864`, "ssh-ed25519 AAAA"} {
		if !strings.Contains(got, want) {
			t.Errorf("the guest answers %q, want %s", got, want)
		}
	}
	t.Log(console.line(t, `confinement="it runs as user ID 65532`))
	checkMachineRSS(t, processOf(t, "qemu-system", machineUUID))
	begun := time.Now()
	assert.NoError(t, pods.Delete(t.Context(), "first", metav1.DeleteOptions{}))
	console.line(t, "drover linux guest powers off")
	checkMachineEnd(t, "first", 0, `"reason":"Completed"`)
	t.Logf("the guest was shut down after %v", time.Since(begun).Round(time.Millisecond))
	releasePod(t, "first")
}

// testAttach boots the other guest that is on the disk itself, which panics at a key.
func testAttach(t *testing.T, example *machineExample) {
	before, rest, _ := strings.Cut(machineDescription, "kernel:")
	_, rest, _ = strings.Cut(rest, "\n")
	example.config.Data["machine.yaml"] = before + rest
	if _, err := shared.Client.CoreV1().ConfigMaps(machineNamespace).Update(t.Context(), &example.config, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	example.runUntil(t, "third", "drover guest 3 A")
	typeInto(t, machineNamespace, "third", "p")
	checkMachineEnd(t, "third", 3, `"reason":"GuestPanicked"`)
}

// typeInto types at the console of a machine, as kubectl attach does.
func typeInto(t *testing.T, namespace, name, text string) {
	t.Helper()
	request := shared.Client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(name).SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Stdin: true, Stdout: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(shared.Config, "GET", request.URL().String())
	assert.NoError(t, err)
	assert.NoError(t, executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader(text), Stdout: io.Discard}))
}

// releasePod removes a pod whose end the test has seen, and waits until it is gone.
func releasePod(t *testing.T, name string) {
	t.Helper()
	pods := shared.Client.CoreV1().Pods(machineNamespace)
	assert.NoError(t, pods.Delete(t.Context(), name, metav1.DeleteOptions{}))
	if _, err := pods.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	assert.Eventually(t, name+" is gone", func(t testing.TB) error {
		if _, err := pods.Get(t.Context(), name, metav1.GetOptions{}); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}
