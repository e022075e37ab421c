// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"encoding/json"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// tableFields returns the fields of each row of a table, by the row's first field.
func tableFields(table string) map[string][]string {
	rows := map[string][]string{}
	for line := range strings.Lines(table) {
		if row := strings.Fields(line); len(row) > 0 {
			rows[row[0]] = row
		}
	}
	return rows
}

func TestList(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	r := u.run("list")
	assert.True(t, r.code == 0 && r.out == "" && r.errs == "No VMs found in namespace \""+u.namespace+"\".\n", "an empty list is %+v", r)
	u.createVM("web", "--port=18090:80", "--labels=app=web")
	u.createVM("bad", "--image=guest")
	u.mustRun("stop", "bad", "--wait")
	rows := tableFields(u.mustRun("list"))
	assert.Equal(t, "the header", strings.Join(rows["NAME"], " "), "NAME STATE READY REASON CPU MEMORY ADDRESS PORTS AGE")
	assert.Equal(t, "web", strings.Join(rows["web"][:8], " "), "web Active True Running 1 1G "+u.getVM("web").Status.Addresses[0]+" 18090:80")
	assert.Equal(t, "bad", strings.Join(rows["bad"][:8], " "), "bad Stopped True StoppedAsAsked 1 1G - -")
	rows = tableFields(u.mustRun("ls", "-l", "app=web", "--no-headers"))
	assert.True(t, len(rows) == 1 && rows["web"] != nil, "with labels and without a header the list is %v", rows)
	wide := tableFields(u.mustRun("list", "-o", "wide"))
	assert.True(t, wide["bad"][9] == "fake" && strings.Contains(strings.Join(wide["bad"], " "), " guest "), "wide, bad is %v", wide["bad"])
	everywhere := tableFields(u.mustRun("list", "-A"))
	assert.True(t, everywhere["NAMESPACE"] != nil && everywhere[u.namespace] != nil, "the list of all namespaces lacks this one")
	assert.Equal(t, "the names", u.mustRun("list", "-o", "name"), "virtualmachine.cloudnative.tw/bad\nvirtualmachine.cloudnative.tw/web\n")
	u.mustFail(1, []string{`--output "table"`, "wide"}, "list", "-o", "table")
	u.mustFail(1, []string{"does not take arguments"}, "list", "web")
}

// TestObjectsAreComplete compares printed objects with those of the API server.
func TestObjectsAreComplete(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	vm := u.createVM("web", "--port=18091:80")
	var list, one map[string]any
	assert.NoError(t, json.Unmarshal([]byte(u.mustRun("list", "-o", "json")), &list))
	assert.NoError(t, json.Unmarshal([]byte(u.mustRun("show", "web", "-o", "json")), &one))
	items, _ := list["items"].([]any)
	assert.Require(t, list["kind"] == "VirtualMachineList" && len(items) == 1 && one["kind"] == "VirtualMachine",
		"got a %v of %d, and a %v", list["kind"], len(items), one["kind"])
	for _, object := range []any{items[0], one} {
		fields, _ := object.(map[string]any)
		metadata, _ := fields["metadata"].(map[string]any)
		assert.True(t, metadata["uid"] == string(vm.UID) && metadata["managedFields"] == nil && fields["spec"] != nil && fields["status"] != nil, "got %v", object)
	}
	assert.Equal(t, "the port", u.mustRun("show", "web", "-o", "jsonpath={.status.ports[0].hostPort}"), "18091")
}

func TestShow(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createVM("web", "--cpu=2", "--memory=64Mi", "--disk=1G", "--port=http=18092:80", "--port=81", "--labels=app=web")
	out := u.mustRun("show", "web", "vm/web")
	assert.True(t, strings.Count(out, "web is ready: Active, Running.\n") == 1, "the line is not printed exactly once:\n%s", out)
	wantTexts(t, out, "Wanted      active", "fake, engine ", "CPU         2", "Memory      64Mi", "root 1G", "http 18092:80, tcp-81 81 (not open)", "app=web", "removed when the VM is deleted", u.namespace)
	u.mustFail(1, []string{"no VM is named"}, "show")
}

func TestTop(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	big, small := u.createVM("big", "--cpu=2", "--memory=4G"), u.createVM("small", "--memory=100M")
	for _, vm := range []*api.VirtualMachine{big, small} {
		environment.WaitForVM(t, vm, framework.HasUsage)
	}
	rows := tableFields(u.mustRun("top", "--sort-by=memory"))
	got := rows["big"]
	assert.True(t, got[2] == "0.00/2" && got[4] == "1.00G/4G" && got[5] == "25.0%", "big is %v", got)
	out := u.mustRun("top", "--sort-by=memory", "--no-headers")
	assert.True(t, strings.HasPrefix(out, "big "), "the first is not big:\n%s", out)
	out = u.mustRun("top", "--sort-by=name", "--no-headers")
	assert.True(t, strings.HasPrefix(out, "big "), "by name, the first is not big:\n%s", out)
	u.mustFail(1, []string{"allowed are cpu, memory and name"}, "top", "--sort-by=age")
}

func TestExplain(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	environment.WaitForEvent(t, u.createVM("good"), api.EventStarted)
	u.mustFail(0, []string{"good is ready: Active, Running.", "answers: server fake-", "Last events:", "Started"}, "explain", "good")
	u.mustRun("create", "bad", "--driver=fake", "--image=a b")
	u.waitFor("bad", framework.HasPhase(api.PhaseFailed, api.ReasonInvalid))
	u.mustFail(2, []string{"bad is not ready: Failed, Invalid.", "failed once.", "tries again when the spec changes", "Stalled is True", " edit vm bad"}, "explain", "vm/bad")
	u.mustRun("create", "elsewhere", "--driver=not-here")
	u.waitFor("elsewhere", framework.HasPhase(api.PhaseFailed, api.ReasonUnknownDriver))
	u.mustFail(2, []string{"UnknownDriver", "--vm-driver"}, "explain", "elsewhere")
	for _, args := range [][]string{{"explain", "none"}, {"explain"}, {"explain", "a", "b"}, {"explain", "good", "--nonsense"}, {"explain", "pod/good"}} {
		u.mustFail(3, []string{"error: "}, args...)
	}
}

// TestExplainRetries explains a VM whose engine always fails.
func TestExplainRetries(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createFailing()
	u.waitForFailures()
	environment.WaitForEvent(t, u.getVM(failing), api.ReasonOperationFailed) // the event is sent later than the status
	r := u.run("explain", failing)
	wantTexts(t, r.out, "out of luck", "Drover has been creating the server for", "times in a row.", "Condition Ready has been False for", "What to do:", "Last events:")
	if r.code != 1 && r.code != 2 { // 2 after many failures
		t.Errorf("the exit code is %d", r.code)
	}
}

// TestUnknownVM asks for a VM that exists only in another namespace.
func TestUnknownVM(t *testing.T) {
	t.Parallel()
	other, u := newUser(t), newUser(t)
	other.mustRun("create", "web", "--driver=fake")
	for _, args := range [][]string{{"show", "web"}, {"start", "web"}, {"resize", "web", "--cpu=1"}, {"port", "add", "web", "80"}, {"delete", "web", "--yes"}, {"show", "web", "-o", "yaml"}} {
		r := u.mustFail(1, nil, args...)
		assert.True(t, r.errs == `error: virtualmachines "web" not found in namespace "`+u.namespace+"\"\n", "%v says %q", args, r.errs)
	}
}

// TestRights runs the verbs as a user who may only read.
func TestRights(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createVM("web")
	environment.MustRunKubectl(t, "", "create", "role", "viewer", "--namespace="+u.namespace, "--verb=get,list,watch", "--resource=virtualmachines.cloudnative.tw")
	environment.MustRunKubectl(t, "", "create", "rolebinding", "viewer", "--namespace="+u.namespace, "--role=viewer", "--user=jane")
	u.flags = append(u.flags, "--as=jane")
	u.eventuallyRun("list")
	wantTexts(t, u.mustRun("list"), "web")
	u.mustRun("show", "web")
	u.mustRun("top")
	wantTexts(t, u.mustRun("explain", "web"), "web is ready", "The events of the VM cannot be read:", `User "jane" cannot list resource "events"`)
	for _, args := range [][]string{{"stop", "web"}, {"resize", "web", "--cpu=2"}, {"port", "add", "web", "80"}, {"delete", "web", "--yes"}, {"create", "new"}, {"create", "new", "--user-data=/dev/null"}} {
		texts := []string{"error: ", "forbidden", `User "jane"`}
		if args[len(args)-1] == "--user-data=/dev/null" {
			texts = []string{"/dev/null is empty"}
		}
		u.mustFail(1, texts, args...)
	}
	u.flags[len(u.flags)-1] = "--as=joe"
	u.mustFail(1, []string{"forbidden", `User "joe" cannot list resource "virtualmachines"`}, "list")
	vm := u.getVM("web")
	assert.True(t, vm.Spec.Action == api.ActionActive && vm.DeletionTimestamp == nil, "the VM was changed: %+v", vm.Spec)
}

func TestUnreachableClusters(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	proxy := environment.NewAPIProxy(t)
	u.flags = []string{"--kubeconfig=" + proxy.Kubeconfig}
	proxy.Disconnect()
	u.mustFail(1, []string{"error: cannot reach the cluster at https://", "connection refused"}, "list")
	u.mustFail(3, []string{"connection refused"}, "explain", "web")
	proxy.Restore()
	proxy.Blackhole()
	u.mustFail(1, []string{"did not answer within 2s (--request-timeout)"}, "list", "--request-timeout=2s")
	proxy.Restore()
	u.mustRun("list")
	u.flags = []string{"--kubeconfig=" + t.TempDir() + "/absent"}
	u.mustFail(1, []string{"absent: no such file"}, "list")
	u.flags = []string{"--kubeconfig=" + environment.Kubeconfig, "--context=none"}
	u.mustFail(1, []string{"none"}, "list")
}

// TestWithoutDrover uses an API server that does not serve VirtualMachines.
func TestWithoutDrover(t *testing.T) {
	t.Parallel()
	u := &user{t: t, namespace: metav1.NamespaceDefault, flags: []string{"--kubeconfig=" + hideVirtualMachines(t)}, stdin: strings.NewReader("")}
	for _, args := range [][]string{{"list"}, {"list", "-o", "json"}, {"show", "web"}, {"stop", "web"}, {"top"}, {"create", "web"}, {"delete", "web", "--yes"}, {"stop", "--all"}} {
		u.mustFail(1, []string{"Drover is not installed in it"}, args...)
	}
	u.mustFail(3, []string{"Drover is not installed in it"}, "explain", "web")
}

// hideVirtualMachines returns a kubeconfig for a proxy of the API server that answers requests for
// VirtualMachines as if their API group did not exist.
func hideVirtualMachines(t *testing.T) string {
	t.Helper()
	transport, err := rest.TransportFor(environment.Config)
	assert.NoError(t, err)
	target, err := url.Parse(environment.Config.Host)
	assert.NoError(t, err)
	proxy := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.URL.Path = strings.Replace(r.Out.URL.Path, "/apis/"+api.GroupName, "/apis/absent.example.com", 1)
	}})
	t.Cleanup(proxy.Close)
	return testenv.WriteKubeconfig(t, &rest.Config{Host: proxy.URL})
}
