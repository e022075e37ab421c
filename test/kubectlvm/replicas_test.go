// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/app"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// bootTimeout is how long an emulated guest may take on a loaded machine.
const bootTimeout = 4 * time.Minute

// replicas are two controllers of a cluster, which run machines, and serve streams behind
// one address.
type replicas struct {
	*testenv.Environment
	images    string
	all       []*testenv.ControllerProcess
	addresses []string
	start     func(n int)
}

func newReplicas(t *testing.T) *replicas {
	t.Helper()
	framework.QEMUBinary(t)
	temp := t.TempDir()
	testenv.KillMachinesAtEnd(t, temp)
	r := &replicas{
		Environment: testenv.Start(t), images: filepath.Join(temp, "images"),
		all: make([]*testenv.ControllerProcess, 2), addresses: []string{framework.FreeAddress(t), framework.FreeAddress(t)},
	}
	service := framework.NewServiceProxy(t, r.addresses...)
	_, err := framework.WriteServerCertificate(filepath.Join(temp, "certs"))
	if err == nil {
		err = os.Mkdir(r.images, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.start = func(n int) {
		r.all[n] = r.StartControllerProcess(t, []string{fmt.Sprintf("POD_NAME=replica-%d", n)},
			"--vm-driver=qemu", "--qemu-dir="+filepath.Join(temp, "qemu"), "--qemu-image-dirs="+r.images, "--qemu-accel=tcg",
			"--leader-elect=true", "--lease-lock-namespace=default",
			"--streams-address="+r.addresses[n], "--streams-cert-dir="+filepath.Join(temp, "certs"), "--streams-url=https://"+service.Address())
	}
	return r
}

// newUser returns a user who has a namespace of their own.
func (r *replicas) newUser(t *testing.T) *user {
	return &user{t: t, namespace: r.CreateNamespace(t), flags: []string{"--kubeconfig=" + r.Kubeconfig}, stdin: strings.NewReader("")}
}

// newVM returns a VM of a user, a machine of the smallest size.
func (r *replicas) newVM(u *user) *framework.VMBuilder {
	return framework.NewVM("vm").Namespace(u.namespace).Driver("qemu").GracePeriod(3600).
		Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "256Mi").Resource(api.ResourceRootDisk, "64Mi")
}

// waitUntilServed waits until a replica accepts connections.
func (r *replicas) waitUntilServed(t *testing.T, n int) {
	t.Helper()
	assert.Eventually(t, "replica "+r.addresses[n]+" serves streams", func(t testing.TB) error {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.addresses[n])
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// TestConsoleOutlivesItsReplica has a person at the console of a machine whose guest resets,
// whose replica of the controller, which leads, is killed, and which is restarted by the other
// one. The session is the same all the time, and typing works after each.
func TestConsoleOutlivesItsReplica(t *testing.T) {
	t.Setenv("TERM", "xterm")
	r := newReplicas(t)
	r.start(0)
	u := r.newUser(t)
	vm := r.CreateVM(t, r.newVM(u).Image(framework.BuildBootGuest(t, r.images, "A", false)))
	r.WaitForVM(t, vm, framework.IsActive)
	r.start(1)
	r.waitUntilServed(t, 1)

	tty := newTerminal(t, 80, 24)
	done := make(chan int, 1)
	go func() { done <- tty.run(t.Context(), u, "console", "vm") }()
	tty.waitFor(t, "drover guest 1 A")
	tty.typeText(t, "one")
	tty.waitFor(t, "one")
	tty.typeText(t, "r") // resets
	tty.waitFor(t, "drover guest 2 A")
	tty.typeText(t, "two")
	tty.waitFor(t, "two")

	r.all[0].MustKill()
	tty.waitFor(t, "The connection was lost. Connecting again")
	tty.typeUntilSeen(t, "ace")
	u.must("restart", "vm", "--wait") // which is work of the new leader
	tty.waitFor(t, "the server has stopped. Connecting again")
	tty.waitFor(t, "drover guest 3 A")
	tty.typeUntilSeen(t, "ten")

	tty.typeText(t, "\x1d")
	if code := <-done; code != 0 {
		t.Errorf("it ended with %d", code)
	}
	text := tty.close()
	if strings.Count(text, "Connecting again") != 2 || !strings.Contains(text, "Left the console.") {
		t.Errorf("the terminal shows %q", text)
	}
	u.must("delete", "vm", "--yes")
}

// TestMachineThroughReplicas uses the log, commands and ports of a machine of Linux through a
// controller's own address.
func TestMachineThroughReplicas(t *testing.T) {
	r := newReplicas(t)
	r.start(0)
	u := r.newUser(t)
	guest := framework.BuildLinuxGuest(t, r.images)
	vm := r.CreateVM(t, r.newVM(u).Port("http", 80, 0).Port("echo", 7, 0).ReadinessProbe(80).Spec(func(s *api.VirtualMachineSpec) {
		s.ReadinessProbe.TimeoutSeconds = 10
		s.Image = &api.Image{Kernel: &api.Kernel{Source: guest.Kernel, Initrd: guest.Initrd, Cmdline: "console=ttyS0 quiet panic=-1 agent=honest"}}
	}))
	r.WaitForVM(t, vm, framework.IsActive)

	want(t, u.must("logs", "vm"), "drover linux guest 1 is up")
	if got := u.must("exec", "vm", "--", "echo", "a b"); got != "a b\n" {
		t.Errorf("echo printed %q", got)
	}
	u.fails(7, nil, "exec", "vm", "--", "exit", "7")
	want(t, u.must("ip", "vm"), "eth0")
	u.checkPortForward(t, 7)
	u.must("delete", "vm", "--yes")
}

// checkPortForward exchanges a line with the port of a VM where the guest repeats what it
// gets.
func (u *user) checkPortForward(t *testing.T, port int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var out buffer
	done := make(chan int, 1)
	go func() {
		done <- app.Main(ctx, u.args([]string{"port-forward", "vm", fmt.Sprintf(":%d", port)}), genericiooptions.IOStreams{In: u.stdin, Out: &out, ErrOut: &out})
	}()
	defer func() {
		cancel()
		<-done
	}()
	var address string
	assert.Eventually(t, "the port is open", func(testing.TB) error {
		_, err := fmt.Sscanf(out.String(), "Forwarding %s -> ", &address)
		return err
	})
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(framework.StepTimeout))
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	const answer = "drover linux guest\nhello\n"
	got := make([]byte, len(answer))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != answer {
		t.Errorf("the port answers %q, %v", got, err)
	}
}

func (tty *terminal) typeText(t testing.TB, text string) {
	t.Helper()
	if _, err := io.WriteString(tty.person, text); err != nil {
		t.Fatal(err)
	}
}

// typeUntilSeen types what the guest repeats, letters that are no commands to it. Keys may be lost while the connection is not
// there again yet.
func (tty *terminal) typeUntilSeen(t *testing.T, text string) {
	t.Helper()
	assert.Eventually(t, "the guest repeats "+text, func(t testing.TB) error {
		if strings.Contains(tty.text.String(), text) {
			return nil
		}
		tty.typeText(t, text)
		return errNotYet
	})
}
