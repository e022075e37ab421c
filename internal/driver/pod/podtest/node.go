// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package podtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/description"
)

// Folders that a pod mounts.
const (
	imageFolder  = "/image"
	secretFolder = "/secret"
)

// Node runs the machines of pods by the real drover-machine, one at a time. As in a container, drover-machine is the
// first process of a PID namespace, so that no process of a machine outlives it.
type Node struct {
	Kube kubernetes.Interface
	// Dir has a folder for each pod and each PVC.
	Dir string
	// Program is drover-machine, and Image a folder that is mounted as the image of each pod.
	Program, Image string
	// Network is the network namespace of pods, and Address the address of pods in it.
	Network, Address string
	// HostIPs are the addresses of the node, as its kubelet reports them.
	HostIPs []string

	mu         sync.Mutex
	containers map[types.UID]*container
	output     bytes.Buffer
}

// container is the container of a pod.
type container struct {
	cmd   *exec.Cmd
	root  string
	ended chan struct{}
	stop  sync.Once
}

// SetHooks sets the hooks of a kubelet, so that it runs its pods on the node.
func (n *Node) SetHooks(k *Kubelet) {
	k.Begin, k.RequestStop, k.HasExited, k.HasStarted = n.Begin, n.requestStop, n.HasExited, n.hasStarted
}

// hasStarted reports whether the file exists for which the startup probe of a pod looks.
func (n *Node) hasStarted(p *corev1.Pod) bool {
	_, err := os.Stat(filepath.Join(n.RunFolder(p.UID), "started"))
	return err == nil
}

// Output returns what the machines have printed.
func (n *Node) Output() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.output.String()
}

// Write appends to the output of the machines.
func (n *Node) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.output.Write(p)
}

// RunFolder is the folder of a pod's machine in which QEMU has its sockets.
func (n *Node) RunFolder(p types.UID) string { return filepath.Join(n.Dir, string(p), "run") }

// PID returns the process of a pod's machine, 0 if it does not run.
func (n *Node) PID(p types.UID) int {
	c := n.containerOf(p)
	if c == nil || c.hasEnded() {
		return 0
	}
	return c.cmd.Process.Pid
}

// HasExited reports whether the machine of a pod has run and has ended.
func (n *Node) HasExited(p *corev1.Pod) bool {
	c := n.containerOf(p.UID)
	return c != nil && c.hasEnded()
}

func (n *Node) containerOf(p types.UID) *container {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.containers[p]
}

func (c *container) hasEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// requestStop sends SIGTERM to the machine of a pod, once, and reports whether the machine still runs.
func (n *Node) requestStop(p *corev1.Pod) bool {
	c := n.containerOf(p.UID)
	if c == nil {
		return false
	}
	c.stop.Do(func() { _ = c.cmd.Process.Signal(syscall.SIGTERM) })
	return !c.hasEnded()
}

// Begin mounts the volumes of a pod below the pod's folder in Dir, and starts the container. The returned function kills
// the pod's machine, if it runs.
func (n *Node) Begin(p *corev1.Pod) (address string, stop func() (int32, string), err error) {
	c := &container{root: filepath.Join(n.Dir, string(p.UID)), ended: make(chan struct{})}
	file := filepath.Join(c.root, "machine.json")
	resolvers := filepath.Join(c.root, "resolv.conf") // with the address of a resolver that does not answer
	if err := errors.Join(n.mountSecret(p, filepath.Join(c.root, secretFolder)), n.describe(p, c.root, file), os.WriteFile(resolvers, []byte("nameserver "+n.Address+"\n"), 0o600)); err != nil {
		return "", nil, err
	}
	c.cmd = exec.Command("ip", "netns", "exec", n.Network, "/bin/sh", "-c", `mount -t proc proc /proc && mount --bind "$0" /etc/resolv.conf && exec "$@"`, resolvers, //nolint:noctx,gosec // it is stopped, and its arguments are the test's
		n.Program, "-description", file, "-run-folder", n.RunFolder(p.UID), "-termination-message", filepath.Join(c.root, "ended"))
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	c.cmd.Stdout, c.cmd.Stderr, c.cmd.Env = n, n, os.Environ()
	for _, e := range objects.MachineContainer(p).Env {
		if e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "status.hostIPs" {
			c.cmd.Env = append(c.cmd.Env, e.Name+"="+strings.Join(n.HostIPs, ","))
		}
	}
	if err := c.cmd.Start(); err != nil {
		return "", nil, err
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.ended)
	}()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.containers == nil {
		n.containers = map[types.UID]*container{}
	}
	n.containers[p.UID] = c
	return n.Address, c.killMachine, nil
}

// killMachine kills the machine, if it runs, and returns its exit code and termination message.
func (c *container) killMachine() (int32, string) {
	if !c.hasEnded() {
		_ = c.cmd.Process.Kill()
		<-c.ended
	}
	message, _ := os.ReadFile(filepath.Join(c.root, "ended"))
	if status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int32(status.Signal()), string(message) //nolint:gosec // a signal
	}
	return int32(c.cmd.ProcessState.ExitCode()), string(message) //nolint:gosec // an exit code
}

// describe writes the description of a pod's machine, with the folders of this node.
func (n *Node) describe(p *corev1.Pod, root, file string) error {
	var m description.Machine
	if err := json.Unmarshal([]byte(p.Annotations[objects.AnnotationMachine]), &m); err != nil {
		return err
	}
	m.Accelerator, m.Control.Folder, m.CloudInit = "tcg", root+m.Control.Folder, root+m.CloudInit
	m.RootDisk.Image = strings.Replace(m.RootDisk.Image, imageFolder, n.Image, 1)
	m.RootDisk.Folder = filepath.Join(n.Dir, "claims", p.Name)
	if m.Kernel != nil {
		m.Kernel.File, m.Kernel.Initrd = strings.Replace(m.Kernel.File, imageFolder, n.Image, 1), strings.Replace(m.Kernel.Initrd, imageFolder, n.Image, 1)
	}
	for i := range m.Volumes {
		m.Volumes[i].Folder = filepath.Join(n.Dir, "claims", p.Name+"-"+m.Volumes[i].Name)
		if m.Volumes[i].Image != "" {
			m.Volumes[i].Image = filepath.Join(n.Image, "disk")
		}
		if err := os.MkdirAll(m.Volumes[i].Folder, 0o700); err != nil {
			return err
		}
	}
	content, err := json.Marshal(m)
	return errors.Join(err, os.MkdirAll(m.RootDisk.Folder, 0o700), os.WriteFile(file, content, 0o600))
}

func (n *Node) mountSecret(p *corev1.Pod, folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	secret, err := n.Kube.CoreV1().Secrets(p.Namespace).Get(context.Background(), objects.SecretOf(p), metav1.GetOptions{})
	if err != nil {
		return err
	}
	for name, content := range secret.Data {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
