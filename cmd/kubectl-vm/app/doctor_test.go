// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/test/assert"
)

// TestDoctorJudgements checks each check's good and bad branches.
func TestDoctorJudgements(t *testing.T) {
	t.Parallel()
	lease := func(holder string, age time.Duration) *coordinationv1.Lease {
		renewed := metav1.NewMicroTime(now.Add(-age))
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed, LeaseDurationSeconds: new(int32(15))}}
	}
	led := func(l *coordinationv1.Lease) []findings.Finding {
		return judgeController(controllerFacts{where: "drover-system/drover-controller", lease: l, now: now})
	}
	const ok, note, warning, mistaken = findings.LevelOK, findings.LevelNote, findings.LevelWarning, findings.LevelError
	for name, c := range map[string]struct {
		found []findings.Finding
		level findings.Level
		says  string
	}{
		"server":                 {judgeServer(serverFacts{url: "a:1", version: "v1.36.3"}), ok, "v1.36.3 at a:1"},
		"server away":            {judgeServer(serverFacts{err: errors.New("connection refused")}), mistaken, "connection refused"},
		"server, no login":       {judgeServer(serverFacts{url: "a:1", err: apierrors.NewUnauthorized("no")}), mistaken, "login"},
		"CRD":                    {judgeCRD(crdFacts{served: true}), ok, "v1alpha1"},
		"CRD older":              {judgeCRD(crdFacts{served: true, missing: "status.binding"}), warning, "status.binding"},
		"CRD none":               {judgeCRD(crdFacts{}), mistaken, "not installed"},
		"CRD unknown":            {judgeCRD(crdFacts{err: errors.New("timeout")}), warning, "timeout"},
		"controller":             {led(lease("a_1", time.Second)), ok, "a_1 leads"},
		"controller, clock late": {led(lease("a_1", -time.Minute)), ok, "a_1 leads"},
		"controller dead":        {led(lease("a_1", time.Minute)), mistaken, "60s ago"},
		"controller released":    {led(lease("", time.Second)), mistaken, "no controller"},
		"controller none":        {led(nil), mistaken, "--drover-namespace"},
		"controller hidden":      {judgeController(controllerFacts{program: "drover vm", forbidden: true}), note, "drover vm explain NAME"},
		"controller unknown":     {judgeController(controllerFacts{err: errors.New("timeout")}), warning, "timeout"},
		"streams":                {judgeStreams(streamsFacts{}), ok, "the API server"},
		"streams elsewhere":      {judgeStreams(streamsFacts{address: "https://s:1"}), ok, "https://s:1"},
		"streams none":           {judgeStreams(streamsFacts{none: true, err: errors.New("not found")}), note, "--streams-address"},
		"streams hidden":         {judgeStreams(streamsFacts{forbidden: true, err: errors.New("forbidden")}), warning, "RBAC"},
		"streams away":           {judgeStreams(streamsFacts{address: "https://s:1", err: errors.New("no route")}), warning, "no route"},
	} {
		if len(c.found) != 1 || c.found[0].Level != c.level || !strings.Contains(fmt.Sprintf("%+v", c.found), c.says) {
			t.Errorf("%s: got %+v, want %s, %q", name, c.found, c.level, c.says)
			continue
		}
		f := c.found[0]
		if f.Level != ok && f.Meaning == "" || f.Level == mistaken && f.Fix == "" {
			t.Errorf("%s: it says not what it means, or what to do: %+v", name, f)
		}
	}
}

// TestDoctorWithoutServer checks that a server that is away is reported once, with exit code 1.
func TestDoctorWithoutServer(t *testing.T) {
	t.Parallel()
	o, out := newOptions()
	address, namespace := "https://127.0.0.1:1", "default"
	o.Config.APIServer, o.Config.Namespace = &address, &namespace
	err := (&doctorOptions{Options: o, droverNamespace: "drover-system"}).run(t.Context())
	exit, is := errors.AsType[*ExitError](err)
	if !is || exit.Code != 1 || exit.Err != nil || strings.Count(out.String(), "refused") != 1 || !strings.Contains(out.String(), "\n1 error; 0 ok.\n") {
		t.Errorf("got %v and\n%s", err, out)
	}
}

// TestTryTLS checks that a server is reached only if its certificate is one of the CA's, and
// that nothing is sent to it.
func TestTryTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") }))
	t.Cleanup(server.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	for name, c := range map[string]struct{ address, ca, says string }{
		"right":             {server.URL, ca, ""},
		"another authority": {server.URL, "", "unknown authority"},
		"no certificates":   {server.URL, "garbage", "cannot be read"},
		"no URL":            {"drover.example:9444", ca, "no https URL"},
		"plain":             {"http://127.0.0.1:1", ca, "no https URL"},
		"away":              {"https://127.0.0.1:1", ca, "refused"},
	} {
		err := tryTLS(t.Context(), c.address, c.ca)
		assert.ErrorSays(t, name, err, c.says)
	}
}
