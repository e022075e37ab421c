// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// historians are two controllers of a cluster with simulated servers, which record decisions in
// files, and serve streams behind one address.
type historians struct {
	*testenv.Environment
	files [2]string
	all   [2]*testenv.ControllerProcess
	start func(n int)
}

func newHistorians(t *testing.T) *historians {
	t.Helper()
	temp := t.TempDir()
	h := &historians{Environment: testenv.Start(t)}
	addresses := []string{framework.FreeAddress(t), framework.FreeAddress(t)}
	service := framework.NewServiceProxy(t, addresses...)
	if _, err := framework.WriteServerCertificate(filepath.Join(temp, "certs")); err != nil {
		t.Fatal(err)
	}
	h.allowDiscovery(t)
	h.start = func(n int) {
		h.files[n] = filepath.Join(temp, fmt.Sprint("decisions-", n))
		h.all[n] = h.StartControllerProcess(t, []string{fmt.Sprintf("POD_NAME=replica-%d", n)},
			"--vm-driver=fake", "--leader-elect=true", "--lease-lock-namespace=default", "--decisions="+h.files[n],
			"--streams-address="+addresses[n], "--streams-cert-dir="+filepath.Join(temp, "certs"), "--streams-url=https://"+service.Address())
		assert.Eventually(t, "the replica serves streams", func(t testing.TB) error {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addresses[n])
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
	return h
}

// allowDiscovery lets every user find where streams are served, as config/rbac does.
func (h *historians) allowDiscovery(t *testing.T) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: streams.ConfigMapName, Namespace: streams.ConfigMapNamespace}
	rbac := h.KubeClient.RbacV1()
	_, err := rbac.Roles(meta.Namespace).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{meta.Name}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = rbac.RoleBindings(meta.Namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:authenticated"}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// newUser returns an administrator who has a namespace of their own.
func (h *historians) newUser(t *testing.T) *user {
	return &user{t: t, namespace: h.CreateNamespace(t), flags: []string{"--kubeconfig=" + h.Kubeconfig}, stdin: strings.NewReader("")}
}

// as returns another user of a namespace, who has a role there unless that is empty.
func (h *historians) as(u *user, role string) *user {
	u.t.Helper()
	name := "user-" + role
	config := h.SignUser(u.t.(*testing.T), name, time.Now().Add(time.Hour))
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData, CertificateAuthority: config.CAFile}
	file.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	file.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	file.CurrentContext = "x"
	path := filepath.Join(u.t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(*file, path)
	if err == nil && role != "" {
		_, err = h.KubeClient.RbacV1().RoleBindings(u.namespace).Create(u.t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		u.t.Fatal(err)
	}
	return &user{t: u.t, namespace: u.namespace, flags: []string{"--kubeconfig=" + path}, stdin: strings.NewReader("")}
}

// TestHistory reads the decisions of a leader, as several users and through a service that leads
// to a standby half of the time; derives them again; and reads those of the next leader.
func TestHistory(t *testing.T) {
	t.Parallel()
	h := newHistorians(t)
	h.start(0)
	u := h.newUser(t)
	h.SetFaults(t, failing+":\n  failCreate: 2\n  message: out of luck\n")
	u.must("create", failing, "--driver=fake", "--cpu=1", "--wait")
	u.must("stop", failing, "--wait")
	h.start(1)

	checkHistory(t, u.must("explain", failing, "--history"),
		"Decisions about "+u.namespace+"/failing, the newest last.", "Replica replica-0_", "leads with epoch",
		"Generation 1 wants it active. The fake engine has no server.", "So Drover creates the server. The status is Creating, Creating.",
		"It failed after", "out of luck", "Create has failed 2 times in a row (OperationFailed)", "So Drover waits (Create). The status is Failed,",
		"It succeeded after", "The status is Active, Running, ready.", "wants it stopped", "So Drover stops the server.", "StoppedAsAsked")
	saved := filepath.Join(t.TempDir(), "history.json")
	if err := os.WriteFile(saved, []byte(u.must("explain", failing, "--history", "-o", "json")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{saved, h.files[0]} {
		want(t, u.must("explain", "--replay", file), "decisions about 1 VM were derived again by Drover dev: 0 differ.")
	}
	checkTampered(t, u, saved)

	h.as(u, "view").eventually("explain", failing, "--history")
	h.as(u, "").fails(3, []string{`cannot get resource "virtualmachines/decisions"`}, "explain", failing, "--history")
	u.fails(3, []string{"not found"}, "explain", "absent", "--history")
	u.fails(3, []string{"--history and --replay exclude each other"}, "explain", "--history", "--replay", saved)
	u.fails(3, []string{"no such file"}, "explain", "--replay", saved+"-absent")

	h.all[0].MustKill()
	assert.Eventually(t, "the next leader has decided", func(testing.TB) error {
		if out := u.run("explain", failing, "--history").out; !strings.Contains(out, "Replica replica-1_") || !strings.Contains(out, "So ") {
			return fmt.Errorf("it prints %s", out)
		}
		return nil
	})
	u.must("delete", failing, "--yes")
	u.fails(3, []string{"not found"}, "explain", failing, "--history")
}

// checkHistory checks that a history has texts, within 80 columns.
func checkHistory(t *testing.T, out string, texts ...string) {
	t.Helper()
	want(t, strings.Join(strings.Fields(out), " "), texts...)
	for line := range strings.Lines(out) {
		if utf8.RuneCountInString(line) > 81 {
			t.Errorf("a line is longer than 80: %s", line)
		}
	}
}

// checkTampered replays a history as a Drover would that decides otherwise.
func checkTampered(t *testing.T, u *user, saved string) {
	t.Helper()
	text, err := os.ReadFile(saved)
	tampered := saved + "-tampered"
	if err == nil {
		err = os.WriteFile(tampered, []byte(strings.Replace(string(text), `"reason": "StoppedAsAsked"`, `"reason": "Other"`, 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	u.fails(1, []string{u.namespace + "/" + failing, "status.reason differs:", "Drover dev decided Other\n", "Drover dev decides StoppedAsAsked\n", ": 1 differ."}, "explain", "--replay", tampered)
}
