// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// Users and the group of the tests exist only in the mount namespace of their drover up. bob is never in the group.
const (
	annID   = 2100065801
	bobID   = 2100065802
	groupID = 2100065809
)

// loginHost is a drover up that sees additional users.
type loginHost struct {
	*framework.Cluster
	dir, program, group string
}

func newLoginHost(t *testing.T) *loginHost {
	t.Helper()
	framework.RequireRoot(t, "only root lets users log in")
	public := framework.PublicDir(t)
	h := &loginHost{dir: filepath.Join(public, "login"), program: framework.PublicProgram(t, droverBinary(t)), group: filepath.Join(public, "group")}
	passwd, script := filepath.Join(public, "passwd"), filepath.Join(public, "up")
	users := fmt.Sprintf("ann:x:%d:%d::/:/bin/sh\nbob:x:%d:%d::/:/bin/sh\n", annID, annID, bobID, bobID)
	commands := fmt.Sprintf("mount --bind %s /etc/passwd && mount --bind %s /etc/group && exec \"$0\" \"$@\"", passwd, h.group)
	assert.NoError(t, errors.Join(
		os.WriteFile(passwd, []byte(framework.ReadFile(t, "/etc/passwd")+users), 0o600), os.Chmod(passwd, 0o644),
		os.WriteFile(h.group, fmt.Appendf(nil, "%sdrover:x:%d:ann\n", framework.ReadFile(t, "/etc/group"), groupID), 0o600), os.Chmod(h.group, 0o644),
		framework.WriteProgram(script, fmt.Appendf(nil, "#!/bin/sh\nexec unshare --mount sh -c '%s' %s \"$@\"\n", commands, h.program)),
	))
	h.Cluster = framework.StartCluster(t, framework.ClusterOptions{
		Binary: script, WithController: true, Args: []string{"--vm-driver", "fake", "--login-dir", h.dir},
	})
	return h
}

// removeFromGroup removes ann in one write, so that no reader sees a part of the file.
func (h *loginHost) removeFromGroup(t *testing.T) {
	t.Helper()
	content := framework.ReadFile(t, h.group)
	f, err := os.OpenFile(h.group, os.O_WRONLY, 0)
	assert.NoError(t, err)
	_, err = f.WriteAt([]byte("bin"), int64(strings.LastIndex(content, "ann")))
	assert.NoError(t, errors.Join(err, f.Close()))
}

// session is a user's login session on the host.
type session struct {
	host    *loginHost
	user    *syscall.Credential
	runtime string
}

func (h *loginHost) newSession(t *testing.T, uid uint32, groups ...uint32) *session {
	t.Helper()
	s := &session{host: h, user: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}, runtime: framework.PublicDir(t)}
	assert.NoError(t, errors.Join(os.Chmod(s.runtime, 0o700), framework.ChownAll(s.runtime, s.user)))
	return s
}

func (s *session) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"HOME=" + s.runtime, "XDG_RUNTIME_DIR=" + s.runtime, "DROVER_LOGIN_DIR=" + s.host.dir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.user}
	return cmd
}

// run runs drover to its end.
func (s *session) run(t testing.TB, args ...string) commandResult {
	t.Helper()
	return runCommand(t, s.command(t.Context(), s.host.program, args...))
}

func runCommand(t testing.TB, cmd *exec.Cmd) commandResult {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return commandResult{code: cmd.ProcessState.ExitCode(), out: out.String(), errOut: errOut.String()}
}

// want runs drover, which must print a text and succeed.
func (s *session) want(t testing.TB, text string, args ...string) string {
	t.Helper()
	got := s.run(t, args...)
	assert.Require(t, got.code == 0 && strings.Contains(got.out, text), "drover %q: %+v, want %q", args, got, text)
	return got.out
}

// wantRefusal runs drover, which must fail with a text.
func (s *session) wantRefusal(t testing.TB, text string, args ...string) {
	t.Helper()
	got := s.run(t, args...)
	assert.True(t, got.code != 0 && strings.Contains(got.errOut, text), "drover %q: %+v, want %q", args, got, text)
}

// logInAnn waits until the socket is there, and logs ann in.
func (h *loginHost) logInAnn(t *testing.T) *session {
	t.Helper()
	ann := h.newSession(t, annID, groupID)
	assert.Eventually(t, "ann logs in", func(t testing.TB) error {
		got := ann.run(t, "login")
		return assert.ErrorUnless(got.code == 0 && strings.HasPrefix(got.out, "Logged in as unix:ann until "), "%+v", got)
	})
	return ann
}

// TestLogin checks what a member of group drover may do, and who is not one.
func TestLogin(t *testing.T) {
	t.Parallel()
	h := newLoginHost(t)
	ann := h.logInAnn(t)
	ann.want(t, "", "vm", "create", "web")
	ann.want(t, "web", "vm", "list")
	ann.want(t, "virtualmachine.cloudnative.tw/web", "kubectl", "--namespace", "user-ann", "get", "vms", "-o", "name")
	ann.want(t, "virtualmachine.cloudnative.tw/web", "kubectl", "get", "vms", "-o", "name")
	for _, refused := range []string{
		"get vms --namespace default", "get vms --all-namespaces", "get secrets", "create configmap x", "create namespace x", "get namespaces",
		"label namespace user-ann cloudnative.tw/unix-uid=1 --overwrite", "delete namespace user-ann", "delete rolebinding drover-login",
		"create rolebinding x --clusterrole edit --user unix:bob", "create serviceaccount x", "create token default", "delete serviceaccount agents",
	} {
		ann.wantRefusal(t, "forbidden", append([]string{"kubectl"}, strings.Fields(refused)...)...)
	}
	token := strings.TrimSpace(ann.want(t, "", "kubectl", "create", "token", "agents"))
	agents := []string{"kubectl", "--kubeconfig", writeTokenConfig(t, h, token)}
	bob := h.newSession(t, bobID)
	bob.want(t, "virtualmachine.cloudnative.tw/web", append(agents, "get", "vms", "-o", "name")...)
	bob.wantRefusal(t, "forbidden", append(agents, "create", "token", "agents")...)
	bob.wantRefusal(t, "only members of group drover", "login")
	bob.wantRefusal(t, "only members of group drover", "vm", "list")
	h.newSession(t, bobID, groupID).wantRefusal(t, "user bob (2100065802) is not in group drover", "login")
	h.newSession(t, 2100065803, groupID).wantRefusal(t, "the host does not list a user with ID 2100065803", "login")
	checkAdoption(t, h)
}

// checkAdoption checks that a namespace of another user ID is refused until root gives it away.
func checkAdoption(t *testing.T, h *loginHost) {
	t.Helper()
	admin := []string{"kubectl", "--kubeconfig", h.Kubeconfig}
	label := func(value string) {
		t.Helper()
		got := runDrover(t, "", nil, append(admin, "label", "--overwrite", "namespace", "user-ann", "cloudnative.tw/unix-uid="+value)...)
		assert.True(t, got.code == 0, "%+v", got)
	}
	label("1")
	other := h.newSession(t, annID, groupID)
	other.wantRefusal(t, "namespace user-ann belongs to user ID 1, and user ann has ID 2100065801", "login")
	label("2100065801")
	other.want(t, "unix:ann", "login")
}

// writeTokenConfig writes a kubeconfig with a token in namespace user-ann, which all users can read.
func writeTokenConfig(t *testing.T, h *loginHost, token string) string {
	t.Helper()
	path := filepath.Join(framework.PublicDir(t), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "a",
"clusters": [{"name": "a", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
"users": [{"name": "a", "user": {"token": %q}}],
"contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "user-ann"}}]}`, h.Config.Host, token)
	assert.NoError(t, errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, 0o644)))
	return path
}

// TestLeavingTheGroup checks that a user who leaves the group loses the certificate, tokens and streams, and other rights
// that root gave, and keeps the VMs.
func TestLeavingTheGroup(t *testing.T) {
	t.Parallel()
	tier.Full(t, "rights are compared twice a minute; TestCompareRights has all cases without an API server")
	h := newLoginHost(t)
	ann := h.logInAnn(t)
	admin := []string{"kubectl", "--kubeconfig", h.Kubeconfig}
	got := runDrover(t, "", nil, append(admin, "create", "rolebinding", "ann", "--clusterrole", "view", "--user", "unix:ann")...)
	assert.True(t, got.code == 0, "%+v", got)
	ann.want(t, "", "vm", "create", "web", "--wait")
	token := strings.TrimSpace(ann.want(t, "", "kubectl", "create", "token", "agents", "--duration", "24h"))
	agents := append([]string{"kubectl", "--kubeconfig", writeTokenConfig(t, h, token)}, "get", "vms")
	stream := ann.command(t.Context(), h.program, "vm", "exec", "-i", "web", "--", "cat")
	input, err := stream.StdinPipe() // which stays open
	assert.NoError(t, err)
	defer func() { _ = input.Close() }()
	var printed bytes.Buffer
	stream.Stdout, stream.Stderr = &printed, &printed
	assert.NoError(t, stream.Start())
	ended := make(chan error, 1)
	go func() { ended <- stream.Wait() }()
	ann.want(t, "", "kubectl", "get", "vms", "--namespace", "default")

	begin := time.Now()
	h.removeFromGroup(t)
	assert.Eventually(t, "the certificate gives no right", func(t testing.TB) error {
		mine, others := ann.run(t, "kubectl", "get", "vms"), ann.run(t, "kubectl", "get", "vms", "--namespace", "default")
		return assert.ErrorUnless(strings.Contains(mine.errOut, "forbidden") && strings.Contains(others.errOut, "forbidden"), "%+v, %+v", mine, others)
	})
	t.Logf("bindings removed after %s", time.Since(begin))
	assert.Eventually(t, "the token is refused", func(t testing.TB) error {
		got := ann.run(t, agents...)
		return assert.ErrorUnless(strings.Contains(got.errOut, "Unauthorized") || strings.Contains(got.errOut, "must be logged in"), "%+v", got)
	})
	err = assert.Receive(t, "the end of the stream", ended)
	t.Logf("the stream ended after %s: %v, %s", time.Since(begin), err, printed.String())
	assert.True(t, err != nil && strings.Contains(printed.String(), "cannot create resource"), "%v: %s", err, printed.String())
	h.newSession(t, annID, groupID).wantRefusal(t, "is not in group drover", "login")
	_, err = clientFor(t, h.Config).CoreV1().Namespaces().Get(t.Context(), "user-ann", metav1.GetOptions{})
	assert.NoError(t, err)
}
