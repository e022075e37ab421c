// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
)

// machineDescription describes a machine to drover-machine: a Linux guest that counts its boots on a
// disk, which is a copy of an image.
const machineDescription = `
version: 1
uuid: ` + machineUUID + `
name: web
cpus: 1
memoryBytes: 201326592
accelerator: tcg
rootDisk: {folder: /disk, image: /image/disk, sizeBytes: 67108864}
kernel: {file: /image/vmlinuz, initrd: /image/initrd, cmdline: ` + framework.GuestCmdline + `}
forwards: [{port: 80}]
cloudInit: /cloud-init
gracePeriodSeconds: 60
`

// isMachineImported is set once all nodes have the images. Tests are not parallel.
var isMachineImported bool

// importMachine builds the images of drover-machine and of a guest, and imports them on all nodes,
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
	assert.NoError(t, shared.ImportImage(t.Context(), filepath.Join(dir, "drover-machine.tar")))
	importImage(t, shared, guestImage, files)
	isMachineImported = true
}

// importImage imports an image made of files on a node, or on all nodes.
func importImage(t *testing.T, to interface {
	ImportImage(ctx context.Context, archive string) error
}, tag string, files map[string]string,
) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "image.tar")
	assert.NoError(t, cluster.WriteImage(archive, tag, files, "/none"))
	assert.NoError(t, to.ImportImage(t.Context(), archive))
}

// machineExample is examples/drover-machine/pod.yaml, changed to run the test's guest.
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
	e.pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node.Name}
	e.pod.Spec.Containers[0].Image, e.pod.Spec.Containers[0].ImagePullPolicy = machineImage, corev1.PullNever
	for i, volume := range e.pod.Spec.Volumes {
		if volume.Image != nil {
			e.pod.Spec.Volumes[i].Image = &corev1.ImageVolumeSource{Reference: guestImage, PullPolicy: corev1.PullNever}
		}
	}
	return &e
}

// create creates a namespace for restricted pods, with the pod and the objects that it refers to. It
// returns when the kubelet's probe has succeeded.
func (e *machineExample) create(t *testing.T) *corev1.Pod {
	t.Helper()
	createNamespace(t, machineNamespace)
	ctx, core := t.Context(), shared.Client.CoreV1()
	_, err1 := core.ConfigMaps(machineNamespace).Create(ctx, &e.config, metav1.CreateOptions{})
	_, err2 := core.Secrets(machineNamespace).Create(ctx, &e.secret, metav1.CreateOptions{})
	_, err3 := core.PersistentVolumeClaims(machineNamespace).Create(ctx, &e.claim, metav1.CreateOptions{})
	assert.NoError(t, errors.Join(err1, err2, err3))
	e.pod.Namespace = machineNamespace
	return createReadyPod(t, &e.pod)
}

// processOf returns a process of this host by its name and a text of its command line.
func processOf(t testing.TB, name, argument string) int {
	t.Helper()
	pid, ok := findProcess(name, argument)
	assert.Require(t, ok, "no process %s %s runs", name, argument)
	return pid
}

func findProcess(name, argument string) (pid int, ok bool) {
	all, _ := procfs.AllProcs()
	for _, p := range all {
		comm, _ := p.Comm()
		line, _ := p.CmdLine()
		if strings.HasPrefix(comm, name) && strings.Contains(strings.Join(line, " "), argument) {
			return p.PID, true
		}
	}
	return 0, false
}

// TestMachine runs the example of drover-machine, without Drover, in a restricted pod. Another pod reaches
// the guest, and deletion of the pod shuts the guest down.
func TestMachine(t *testing.T) {
	tier.Full(t, "TestPodDriver runs drover-machine in restricted pods too")
	importMachine(t)
	client := runPod(t, "machine-client", shared.Node(2))
	pod := readMachineExample(t, shared.Node(1)).create(t)
	got := get(t, client.Name, "http://"+pod.Status.PodIP)
	for _, want := range []string{`"boots":1`, `"size":67108864`, "ssh-ed25519 AAAA"} {
		assert.Contains(t, "the guest answers", got, want)
	}
	pods := shared.Client.CoreV1().Pods(machineNamespace)
	keepPod(t, machineNamespace, pod.Name)
	assert.NoError(t, pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
	assert.Eventually(t, "the machine has ended", func(t testing.TB) error {
		pod, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		end := pod.Status.ContainerStatuses[0].State.Terminated
		if end == nil {
			return errors.New("the machine still runs")
		}
		assert.True(t, end.ExitCode == 0 && strings.Contains(end.Message, `"reason":"Completed"`), "the machine ended with %d, %q", end.ExitCode, end.Message)
		return nil
	})
}

// typeInto types at the console of a machine, as kubectl attach does, but without output: with output,
// containerd 2.4 may miss the end of a short input, and the session then does not end.
func typeInto(t *testing.T, namespace, name, text string) {
	t.Helper()
	request := shared.Client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(name).SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Stdin: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(shared.Config, "GET", request.URL().String())
	assert.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), framework.CommandTimeout)
	defer cancel()
	assert.NoError(t, executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader(text)}))
}
