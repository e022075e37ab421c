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

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

// replicas are two controllers of one cluster. They simulate servers, run machines, and serve
// streams at one address.
type replicas struct {
	*testenv.Environment
	images string
	all    [2]*testenv.ControllerProcess
	start  func(n int)
}

func newReplicas(t *testing.T) *replicas {
	t.Helper()
	framework.QEMUBinary(t)
	temp := framework.ShortTempDir(t)
	testenv.KillMachinesAtEnd(t, temp)
	r := &replicas{Environment: testenv.Start(t), images: filepath.Join(temp, "images")}
	addresses := []string{framework.FreeAddress(t), framework.FreeAddress(t)}
	service := framework.NewServiceProxy(t, addresses...)
	certs := filepath.Join(temp, "certs")
	_, err := framework.WriteServerCertificate(certs)
	if err == nil {
		err = os.Mkdir(r.images, 0o700)
	}
	assert.NoError(t, err)
	r.allowDiscovery(t)
	r.start = func(n int) {
		r.all[n] = r.StartControllerProcess(t, []string{fmt.Sprintf("POD_NAME=replica-%d", n)},
			"--vm-driver=fake,qemu", "--qemu-dir="+filepath.Join(temp, "qemu"), "--qemu-image-dirs="+r.images, "--qemu-accel=tcg",
			"--leader-elect=true", "--lease-lock-namespace=default", "--orphan-policy=report", "--orphan-grace=1s",
			"--streams-address="+addresses[n], "--streams-cert-dir="+certs, "--streams-url=https://"+service.Address())
		assert.Eventually(t, "the replica serves streams", func(t testing.TB) error {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addresses[n])
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
	return r
}

// waitUntilPublished waits until users can find the address of the streams.
func (r *replicas) waitUntilPublished(t *testing.T) {
	t.Helper()
	assert.Eventually(t, "the address is published", func(t testing.TB) error {
		_, err := r.KubeClient.CoreV1().ConfigMaps(streams.ConfigMapNamespace).Get(t.Context(), streams.ConfigMapName, metav1.GetOptions{})
		return err
	})
}

// allowDiscovery lets every user find the address of the streams, as config/rbac does.
func (r *replicas) allowDiscovery(t *testing.T) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: streams.ConfigMapName, Namespace: streams.ConfigMapNamespace}
	rbac := r.KubeClient.RbacV1()
	_, err := rbac.Roles(meta.Namespace).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{meta.Name}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = rbac.RoleBindings(meta.Namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:authenticated"}},
		}, metav1.CreateOptions{})
	}
	assert.NoError(t, err)
}

// signIn returns a user without rights, with a client certificate, who works in the namespace of another user.
func (r *replicas) signIn(t *testing.T, u *user, name string) *user {
	t.Helper()
	person, _ := r.NewPerson(t, name)
	path := testenv.WriteKubeconfig(t, person)
	return &user{t: t, namespace: u.namespace, flags: []string{"--kubeconfig=" + path}, stdin: strings.NewReader("")}
}

// TestReplicas uses two replicas, and kills the leader. The tests of orphans, of the history of
// decisions, of a console that stays open, and in the full tier of streams of a Linux machine
// share these replicas and the kill.
func TestReplicas(t *testing.T) {
	t.Parallel()
	r := newReplicas(t)
	r.start(0)
	r.waitUntilPublished(t)
	t.Run("Orphans", func(t *testing.T) { testOrphans(t, r) })
	history := startHistory(t, r)
	person := startConsole(t, r)
	r.start(1)
	history.testHistory(t)
	person.testConsole(t)

	r.all[0].MustKill()
	history.testNextLeader(t)
	person.testNextLeader(t)
	t.Run("Linux", func(t *testing.T) { testLinuxMachine(t, r) })
}

// newMachine returns a VM of a user that is a machine of the smallest size.
func newMachine(u *user) *framework.VMBuilder {
	return framework.NewVM("vm").Namespace(u.namespace).Driver("qemu").GracePeriod(3600).
		Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "256Mi").Resource(api.ResourceRootDisk, "64Mi")
}

// consoleUser is a person at the console of a machine. The guest resets, the leading replica, which
// serves the console, is killed, and the other replica restarts the machine. The session
// survives each of these, and typing works after each.
type consoleUser struct {
	*user
	tty *terminal
}

// startConsole starts the machine.
func startConsole(t *testing.T, r *replicas) *consoleUser {
	t.Helper()
	p := &consoleUser{user: newUserOf(t, r.Environment), tty: newTerminal(t, 80, 24)}
	r.CreateActiveVM(t, newMachine(p.user).Image(framework.BuildBootGuest(t, r.images, "A", false)))
	return p
}

func (p *consoleUser) testConsole(t *testing.T) {
	t.Helper()
	p.tty.startCommand(t.Context(), p.user, "console", "vm")
	p.tty.text.waitFor(t, "drover guest 1 A")
	p.tty.typeText(t, "one")
	p.tty.text.waitFor(t, "one")
	p.tty.typeText(t, "r") // resets
	p.tty.text.waitFor(t, "drover guest 2 A")
	p.tty.typeText(t, "two")
	p.tty.text.waitFor(t, "two")
}

func (p *consoleUser) testNextLeader(t *testing.T) {
	t.Helper()
	p.tty.text.waitFor(t, "The connection was lost. Connecting again")
	p.tty.typeUntilSeen(t, "ace")
	p.mustRun("restart", "vm", "--wait") // the new leader restarts it
	p.tty.text.waitFor(t, "the server has stopped. Connecting again")
	p.tty.text.waitFor(t, "drover guest 3 A")
	p.tty.typeUntilSeen(t, "ten")

	p.tty.typeText(t, "\x1d")
	code := p.tty.waitForExit(t)
	text := p.tty.close()
	assert.True(t, code == 0 && strings.Count(text, "Connecting again") == 2 && strings.Contains(text, "Left the console."),
		"it ended with %d, and the terminal shows %q", code, text)
	p.mustRun("delete", "vm", "--yes")
}

// testLinuxMachine reads the log, runs commands and uses ports of a Linux machine through the address
// of a controller.
func testLinuxMachine(t *testing.T, r *replicas) {
	tier.Full(t, "it boots Linux; the gate keeps TestSSH, which runs commands and forwards a port, the console above, and the streams of machines in test/streams")
	u := newUserOf(t, r.Environment)
	guest := framework.BuildLinuxGuest(t, r.images)
	r.CreateActiveVM(t, newMachine(u).Port("http", 80, 0).Port("echo", 7, 0).ReadinessProbe(80).Spec(func(s *api.VirtualMachineSpec) {
		s.ReadinessProbe.TimeoutSeconds = 10
		s.Image = &api.Image{Kernel: &api.Kernel{Source: guest.Kernel, Initrd: guest.Initrd, Cmdline: framework.GuestCmdline + " agent=honest"}}
	}))

	wantTexts(t, u.mustRun("logs", "vm"), "drover linux guest 1 is up")
	assert.Equal(t, "echo printed", u.mustRun("exec", "vm", "--", "echo", "a b"), "a b\n")
	u.mustFail(7, nil, "exec", "vm", "--", "exit", "7")
	wantTexts(t, u.mustRun("ip", "vm"), "eth0")
	u.checkPortForward(t, 7)
	u.mustRun("delete", "vm", "--yes")
}

// checkPortForward sends a line to a port of a VM where the guest echoes its input.
func (u *user) checkPortForward(t *testing.T, port int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	forward := u.start(ctx, "port-forward", "vm", fmt.Sprintf(":%d", port))
	defer func() {
		cancel()
		forward.waitForExit(t)
	}()
	var address string
	assert.Eventually(t, "the port is open", func(testing.TB) error {
		_, err := fmt.Sscanf(forward.errs.String(), "Forwarding %s -> ", &address)
		return err
	})
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	assert.NoError(t, err)
	defer func() { _ = conn.Close() }()
	assert.NoError(t, assert.ErrorOf(io.WriteString(conn, "hello\n")))
	const answer = "drover linux guest\nhello\n"
	got := make([]byte, len(answer))
	_, err = io.ReadFull(conn, got)
	assert.True(t, err == nil && string(got) == answer, "the port answers %q, %v", got, err)
}

// typeUntilSeen types letters that the guest echoes and does not take for commands, until they appear. Keys may be
// lost until the connection is restored.
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
