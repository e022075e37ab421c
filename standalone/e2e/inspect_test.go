// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// doctorReport is the output of drover doctor -o json.
type doctorReport struct {
	Level    string
	Findings []struct{ Name, Group, Level, Observed, Meaning, Fix, Command string }
}

// levelsOf returns the worst level of each check.
func (r doctorReport) levelsOf() map[string]string {
	order := []string{"", "ok", "note", "warning", "error"}
	levels := map[string]string{}
	for _, f := range r.Findings {
		if slices.Index(order, f.Level) > slices.Index(order, levels[f.Name]) {
			levels[f.Name] = f.Level
		}
	}
	return levels
}

func parseDoctor(t testing.TB, got commandResult) doctorReport {
	t.Helper()
	var r doctorReport
	err := json.Unmarshal([]byte(got.out), &r)
	assert.Require(t, err == nil && len(r.Findings) != 0, "%v: %+v", err, got)
	assert.True(t, got.code == map[bool]int{true: 1, false: 0}[r.Level == "error"], "exit code %d for level %s: %+v", got.code, r.Level, r.Findings)
	for _, f := range r.Findings {
		assert.True(t, !strings.Contains(f.Observed, "the check failed") && f.Name != "" && f.Group != "" && f.Observed != "", "got %+v", f)
	}
	return r
}

// waitForLevels runs drover doctor until its checks have the levels that are wanted: on a busy host a
// check may not end in time, and the leader may come after the rest.
func waitForLevels(t *testing.T, run func() commandResult, want map[string]string) (r doctorReport) {
	t.Helper()
	assert.Eventually(t, "drover doctor finds what is wanted", func(t testing.TB) error {
		r = parseDoctor(t, run())
		for _, f := range r.Findings {
			if strings.Contains(f.Observed, "did not end") {
				return fmt.Errorf("got %+v", f)
			}
		}
		for check, level := range want {
			if got := r.levelsOf()[check]; got != level {
				return fmt.Errorf("%s is %q, want %q: %+v", check, got, level, r.Findings)
			}
		}
		return nil
	})
	return r
}

// statusReport is the output of drover status -o json.
type statusReport struct {
	State, Version, Failure string
	PID                     int
	API                     *struct{ URL, Version, Error string }
	Leader                  *struct{ Identity string }
	Drivers                 []struct {
		Driver, EngineID, Error string
		IsDefault, IsOff        bool
		Servers, Running        int
		Orphans                 *int
		Retained                int
	}
	VirtualMachines *struct {
		Total  int
		Phases map[string]int
	}
}

func readStatus(t *testing.T, dir string, wantCode int) statusReport {
	t.Helper()
	got := runDrover(t, "", nil, "status", "-o", "json", "--data-dir", dir)
	var s statusReport
	err := json.Unmarshal([]byte(got.out), &s)
	assert.Require(t, err == nil && got.code == wantCode, "%v, want exit code %d: %+v", err, wantCode, got)
	return s
}

// summarize returns what a status says, without what differs from run to run.
func (s statusReport) summarize() string {
	text := s.State
	if s.API != nil {
		text += ", API " + s.API.Version + s.API.Error
	}
	if s.Leader != nil {
		text += fmt.Sprintf(", leads %t", strings.HasPrefix(s.Leader.Identity, "drover_up_"))
	}
	for _, d := range s.Drivers {
		orphans := "?"
		if d.Orphans != nil {
			orphans = fmt.Sprint(*d.Orphans)
		}
		text += fmt.Sprintf(", %s default %t %d/%d %s %d%s", d.Driver, d.IsDefault, d.Running, d.Servers, orphans, d.Retained, d.Error)
	}
	if s.VirtualMachines != nil {
		text += fmt.Sprintf(", VMs %d %v", s.VirtualMachines.Total, s.VirtualMachines.Phases)
	}
	return text + s.Failure
}

// inspected is a cluster that doctor and status look at.
type inspected struct{ *framework.Cluster }

func (c inspected) wantDoctor(t *testing.T, want map[string]string) {
	t.Helper()
	waitForLevels(t, func() commandResult {
		return runDrover(t, "", nil, "doctor", "-o", "json", "--data-dir", c.DataDir)
	}, want)
}

// wantStatus compares the status as JSON, and requires some texts in that for people.
func (c inspected) wantStatus(t *testing.T, code int, want string, texts ...string) {
	t.Helper()
	got := readStatus(t, c.DataDir, code).summarize()
	assert.True(t, got == want, "got %s, want %s", got, want)
	shown := runDrover(t, "", nil, "status", "--data-dir", c.DataDir)
	for _, text := range texts {
		assert.True(t, shown.code == code && strings.Contains(shown.out, text), "%q is missing in %+v", text, shown)
	}
}

// TestServers follows an installation with simulated servers, and the output of doctor, status,
// orphans, retained and purge about it: while it runs, after it was killed, after it was stopped. Servers
// outlive Drover, and the next start adopts them, until purge removes them.
func TestServers(t *testing.T) {
	t.Parallel()
	c := inspected{framework.StartCluster(t, framework.ClusterOptions{
		DataDir: filepath.Join(framework.ShortTempDir(t), "data"), WithController: true,
		Args: []string{"--vm-driver", "fake", "--orphan-policy", "report", "--orphan-grace", "1s"},
	})}
	create(t, objectsFor(t, c.Config), framework.NewVM("test-vm").Obj())
	id := waitForActiveServer(t, c.Cluster, "")
	c.checkRunning(t)

	assert.NoError(t, c.Kill())
	c.wantStatus(t, 3, "stopped, fake default false 1/1 ? 0", "is stopped: it was killed")
	assert.NoError(t, c.Start())
	assert.Equal(t, "server "+id+" was replaced by", waitForActiveServer(t, c.Cluster, ""), id)
	assertRefused(t, runPurge(t, c.Cluster, "y\n"), "drover: data dir "+c.DataDir+" is in use by drover")
	c.checkOrphans(t)
	released := c.checkRelease(t)

	assert.NoError(t, c.Stop())
	c.checkStopped(t)
	c.checkRetained(t, released)
	checkPurge(t, c.Cluster, id)

	// The object still exists and gets a new server.
	assert.NoError(t, c.Start())
	waitForActiveServer(t, c.Cluster, id)
	assert.NoError(t, c.Stop())
	c.checkDamaged(t)
	assertPurges(t, c.Cluster, "Data removed.", "", "--data", "--yes")
	assert.ErrorIs(t, "the data dir", assert.ErrorOf(os.Stat(c.DataDir)), os.ErrNotExist)
	assertRefused(t, runPurge(t, c.Cluster, ""), "drover: "+c.DataDir+" is not a Drover data dir")
}

func (c inspected) checkRunning(t *testing.T) {
	t.Helper()
	c.wantDoctor(t, map[string]string{"ports": "ok", "data-dir": "ok", "files": "ok"})
	c.wantStatus(t, 0, "ready, API "+serverVersion(t, c.Cluster)+", leads true, fake default true 1/1 0 0, VMs 1 map[Active:1]",
		fmt.Sprintf(" runs (process %d, for ", c.PID()), c.Config.Host, "DRIVER", "1 Active")
}

// checkStopped checks that both commands say so, and change nothing.
func (c inspected) checkStopped(t *testing.T) {
	t.Helper()
	before := framework.ListTree(t, c.DataDir)
	c.wantDoctor(t, map[string]string{"ports": "ok", "data-dir": "ok", "files": "ok"})
	c.wantStatus(t, 3, "stopped, fake default false 1/1 ? 1", " is stopped, since ")
	after := framework.ListTree(t, c.DataDir)
	assert.True(t, slices.Equal(before, after), "they changed\n%q\nto\n%q", before, after)
}

func (c inspected) checkDamaged(t *testing.T) {
	t.Helper()
	path := filepath.Join(c.DataDir, "engines.json")
	whole, err := os.ReadFile(path)
	assert.NoError(t, errors.Join(err, os.WriteFile(path, []byte("{"), 0o600)))
	c.wantStatus(t, 3, "stopped", "engines.json")
	assert.NoError(t, os.WriteFile(path, whole, 0o600))
}

func serverVersion(t *testing.T, c *framework.Cluster) string {
	t.Helper()
	info, err := clientFor(t, c.Config).Discovery().ServerVersion()
	assert.NoError(t, err)
	return info.GitVersion
}

// TestUsage checks the text of help, and the exit codes of wrong flags and of objects that are missing.
func TestUsage(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, 0, "Usage:"},
		{[]string{"--help"}, 0, "drover vm list"},
		{[]string{"--help"}, 0, "purge"},
		{[]string{"vm", "--help"}, 0, "drover vm options"},
		{[]string{"up", "--help"}, 0, "--without-controller"},
		{[]string{"version"}, 0, "drover "},
		{[]string{"version"}, 0, "kubernetes "},
		{[]string{"doctor", "--nonsense"}, 2, "unknown flag"},
		{[]string{"doctor", "-o", "yaml"}, 2, "it must be json"},
		{[]string{"doctor", "now"}, 2, "now"},
		{[]string{"status", "--nonsense"}, 2, "unknown flag"},
		{[]string{"status", "--data-dir", missing}, 3, ""},
		{[]string{"vm", "orphans", "list", "--kubeconfig", missing}, 1, missing},
		{[]string{"retained", "list", "-o", "wide"}, 2, "it must be json"},
		{[]string{"retained", "delete"}, 2, "name at least one ID: drover retained list shows them"},
		{[]string{"image", "list", "-o", "x"}, 2, "it must be json"},
	} {
		got := runDrover(t, "", nil, c.args...)
		text := map[bool]string{true: got.out, false: got.errOut}[c.code == 0]
		assert.True(t, got.code == c.code && strings.Contains(text, c.says), "%v: %+v, want code %d and %q", c.args, got, c.code, c.says)
	}
	assert.ErrorIs(t, "a data dir", assert.ErrorOf(os.Stat(missing)), os.ErrNotExist)
}

// onDataDir returns a command line on the data dir, with its kubeconfig for commands that ask the controller.
func (c inspected) onDataDir(args ...string) []string {
	if args[0] == "orphans" {
		return append([]string{"vm", "--kubeconfig", filepath.Join(c.DataDir, "kubeconfig")}, args...)
	}
	return append(args, "--data-dir", c.DataDir)
}

// wantRun runs a command on the data dir and requires an exit code, and a text on either
// output.
func (c inspected) wantRun(t *testing.T, stdin string, code int, message string, args ...string) {
	t.Helper()
	got := runDrover(t, stdin, nil, c.onDataDir(args...)...)
	assert.True(t, got.code == code && strings.Contains(got.out+got.errOut, message), "%v: %+v, want code %d and %q", args, got, code, message)
}

// wantList compares the UIDs of orphans or of released servers, and returns their IDs.
func (c inspected) wantList(t *testing.T, kind string, want ...string) (ids []string) {
	t.Helper()
	got := runDrover(t, "", nil, c.onDataDir(kind, "list", "-o", "json")...)
	var all []struct{ UID, ID string }
	err := json.Unmarshal([]byte(got.out), &all)
	assert.Require(t, err == nil && got.code == 0, "%v: %+v", err, got)
	uids := make([]string, 0, len(all))
	for _, s := range all {
		uids, ids = append(uids, s.UID), append(ids, s.ID)
	}
	slices.Sort(uids)
	slices.Sort(want)
	assert.True(t, slices.Equal(uids, want), "%s are %q, want %q", kind, uids, want)
	return ids
}

// checkOrphans checks that the leader removes an orphan that a person has approved, and no other
// server.
func (c inspected) checkOrphans(t *testing.T) {
	t.Helper()
	owned := string(vmOf(t, objectsFor(t, c.Config), "test-vm").UID)
	lost, also := copyServer(t, c.Cluster, owned, "", ""), copyServer(t, c.Cluster, owned, "", "")
	foreign := copyServer(t, c.Cluster, owned, `"clusterID": "`, `"clusterID": "other-`)

	c.wantList(t, "orphans", lost, also)
	c.wantRun(t, "y\n", 1, "belongs to the VirtualMachine default/test-vm", "orphans", "delete", owned)
	c.wantRun(t, "y\n", 1, "no server of this installation has the UID", "orphans", "delete", foreign)
	c.wantRun(t, "y\n", 1, "no server of this installation has the UID", "orphans", "delete", lost, "x")
	c.wantRun(t, "y\n", 1, "no terminal to ask on", "orphans", "delete", lost)
	c.wantRun(t, "", 0, "Removed: fake server", "orphans", "delete", "--yes", lost)
	c.wantList(t, "orphans", also)
	c.wantRun(t, "", 0, "Removed: fake server", "orphans", "delete", "--yes", also)
	approvals := newConfigMap("kube-system", "drover-orphan-approvals")
	err := objectsFor(t, c.Config).Get(t.Context(), client.ObjectKeyFromObject(approvals), approvals)
	assert.True(t, err == nil && len(approvals.Data) == 0, "the approvals are %v, %v", approvals.Data, err)
	waitForActiveServer(t, c.Cluster, "") // the server that has a VM
	assert.ErrorIs(t, "the other cluster's server", assert.ErrorOf(os.Stat(recordOf(c.Cluster, foreign))), nil)
	assert.NoError(t, os.Remove(recordOf(c.Cluster, foreign)))
}

// checkRelease deletes a VM that leaves its server, which is not an orphan, and returns the server's ID.
func (c inspected) checkRelease(t *testing.T) string {
	t.Helper()
	objects := objectsFor(t, c.Config)
	vm := create(t, objects, framework.NewVM("kept").DeletionPolicy(api.DeletionRetain).Obj())
	uid := string(vm.UID)
	assert.Eventually(t, "it has a server", func(testing.TB) error {
		_, err := os.Stat(recordOf(c.Cluster, uid))
		return err
	})
	assert.NoError(t, objects.Delete(t.Context(), vm))
	waitForDeletion(t, objects, vm)
	ids := c.wantList(t, "retained", uid)
	c.wantRun(t, "y\n", 1, "was released, so it is not an orphan", "orphans", "delete", uid)
	return ids[0]
}

// checkRetained checks that released servers are removed by name, without a Drover that runs.
func (c inspected) checkRetained(t *testing.T, id string) {
	t.Helper()
	c.wantRun(t, "y\n", 1, `no released server has the id "nonsense"`, "retained", "delete", "nonsense")
	c.wantRun(t, "", 1, "nothing was removed", "retained", "delete", id)
	c.wantRun(t, "", 0, "Removed: fake server", "retained", "delete", "--yes", id[:10])
	c.wantRun(t, "", 0, "No servers were released.", "retained", "list")
}

func recordOf(c *framework.Cluster, uid string) string {
	return filepath.Join(c.DataDir, "drivers", "fake", uid+".json")
}

// copyServer makes a server like another one, of a VM that never was, and changes a part of
// its record.
func copyServer(t *testing.T, c *framework.Cluster, uid, old, changed string) string {
	t.Helper()
	content, err := os.ReadFile(recordOf(c, uid))
	assert.NoError(t, err)
	made := string(uuid.NewUUID())
	content = bytes.ReplaceAll(content, []byte(uid), []byte(made))
	content = bytes.ReplaceAll(content, []byte(`"id": "fake-`), []byte(`"id": "fake-`+made[:8]))
	if old != "" {
		content = bytes.ReplaceAll(content, []byte(old), []byte(changed))
	}
	assert.NoError(t, os.WriteFile(recordOf(c, made), content, 0o600))
	return made
}

func vmOf(t testing.TB, objects client.Client, name string) *api.VirtualMachine {
	t.Helper()
	vm := &api.VirtualMachine{}
	assert.NoError(t, objects.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, vm))
	return vm
}

// TestInspectingAsPlainUser checks both commands without root, of a Drover of the same user,
// and that root sees that Drover with the rights that it has.
func TestInspectingAsPlainUser(t *testing.T) {
	t.Parallel()
	user, program := framework.PlainUser(t), framework.PublicProgram(t, droverBinary(t))
	home := t.TempDir()
	dir := filepath.Join(home, "data")
	assert.NoError(t, errors.Join(os.Chmod(home, 0o755), os.Chmod(filepath.Dir(home), 0o755), os.Mkdir(dir, 0o700), framework.ChownAll(dir, user)))
	command := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, program, append(args, "--data-dir", dir)...)
		cmd.Env, cmd.Dir = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
		return cmd
	}
	ctx, stop := context.WithCancel(t.Context())
	up := command(ctx, "up", "--port", "0", "--vm-driver", "fake", "--unsafe-no-fsync")
	up.Cancel = func() error { return up.Process.Signal(syscall.SIGTERM) }
	var printed bytes.Buffer
	up.Stdout, up.Stderr = &printed, &printed
	assert.NoError(t, up.Start())
	defer func() {
		stop()
		err := up.Wait()
		assert.True(t, err == nil || errors.Is(err, context.Canceled), "%v: %s", err, printed.String())
	}()
	assert.Eventually(t, "it is ready", func(testing.TB) error {
		_, err := os.Stat(filepath.Join(dir, "run", "ready"))
		return err
	})
	want := map[string]string{"ports": "ok", "data-dir": "ok", "files": "ok", "machine-user": "note"}
	waitForLevels(t, func() (r commandResult) {
		out, err := command(t.Context(), "doctor", "-o", "json").Output()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			r.code = exit.ExitCode()
		}
		r.out = string(out)
		return r
	}, want)
	if out, err := command(t.Context(), "status").CombinedOutput(); err != nil || !strings.Contains(string(out), " runs (process ") {
		t.Errorf("status: %v, %s", err, out)
	}
	byRoot := waitForLevels(t, func() commandResult { return runDrover(t, "", nil, "doctor", "-o", "json", "--data-dir", dir) }, want)
	for _, f := range byRoot.Findings {
		assert.True(t, f.Name != "files" || strings.HasSuffix(f.Observed, fmt.Sprintf("are user %d's", user.Uid)), "root sees %q", f.Observed)
	}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		stat, ok := info.Sys().(*syscall.Stat_t)
		assert.True(t, !ok || stat.Uid == user.Uid, "root left %s", path)
		return err
	})
	assert.ReportError(t, err)
}

// checkDoctorOfAPI checks that drover doctor finds a webhook that does not answer, and a deleted definition of
// VirtualMachines, which the next start installs.
func checkDoctorOfAPI(t *testing.T, cluster *framework.Cluster) {
	t.Helper()
	c := objectsFor(t, cluster.Config)
	requireServed := func(level, says string) {
		t.Helper()
		got := runDrover(t, "", nil, "doctor", "--data-dir", cluster.DataDir, "--output", "json")
		var report doctorReport
		assert.NoError(t, json.Unmarshal([]byte(got.out), &report))
		for _, f := range report.Findings {
			if f.Name == "served" && f.Level == level && strings.Contains(f.Observed, says) {
				return
			}
		}
		t.Errorf("drover doctor does not say %q: %s %s", says, got.out, got.errOut)
	}
	requireServed("ok", "the API serves VirtualMachines")
	closed := framework.Listen(t, "tcp", "127.0.0.1:0")
	assert.NoError(t, closed.Close())
	webhook := newObject("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "dead", nil)
	webhook.Object["webhooks"] = []any{map[string]any{
		"name": "dead.example.com", "sideEffects": "None", "admissionReviewVersions": []any{"v1"},
		"clientConfig": map[string]any{"url": "https://" + closed.Addr().String()},
		"rules":        []any{map[string]any{"apiGroups": []any{"cloudnative.tw"}, "apiVersions": []any{"*"}, "operations": []any{"*"}, "resources": []any{"*"}}},
	}}
	create(t, c, webhook)
	requireServed("error", "webhook dead.example.com of ValidatingWebhookConfiguration dead does not answer")
	assert.NoError(t, c.Delete(t.Context(), webhook))

	crd := newObject("apiextensions.k8s.io/v1", "CustomResourceDefinition", "virtualmachines.cloudnative.tw", nil)
	assert.NoError(t, c.Delete(t.Context(), crd))
	waitForDeletion(t, c, crd)
	requireServed("error", "the API lacks the CustomResourceDefinition virtualmachines.cloudnative.tw")
}
