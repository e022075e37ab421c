// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestDoctorJudgements checks each check's good and bad branches.
func TestDoctorJudgements(t *testing.T) {
	t.Parallel()
	lease := func(holder string, age time.Duration) *coordinationv1.Lease {
		renewed := metav1.NewMicroTime(kittest.Now.Add(-age))
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed, LeaseDurationSeconds: new(int32(15))}}
	}
	led := func(l *coordinationv1.Lease) []findings.Finding {
		return judgeController(controllerFacts{leaseName: "drover-system/drover-controller", lease: l, now: kittest.Now})
	}
	configMaps := corev1.Resource("configmaps")
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
		"streams":                {judgeStreams(streamsFacts{host: "s:1"}), ok, "s:1"},
		"streams none":           {judgeStreams(streamsFacts{err: apierrors.NewNotFound(configMaps, "drover-streams")}), note, "not found"},
		"streams hidden":         {judgeStreams(streamsFacts{err: apierrors.NewForbidden(configMaps, "drover-streams", nil)}), warning, "RBAC"},
		"streams away":           {judgeStreams(streamsFacts{host: "s:1", err: &url.Error{Err: errors.New("no route")}}), warning, "no route"},
		"streams, no login":      {judgeStreams(streamsFacts{host: "s:1", err: apierrors.NewUnauthorized("no login")}), warning, "no login"},
	} {
		if len(c.found) != 1 || c.found[0].Level != c.level || !strings.Contains(fmt.Sprintf("%+v", c.found), c.says) {
			t.Errorf("%s: got %+v, want %s, %q", name, c.found, c.level, c.says)
			continue
		}
		f := c.found[0]
		assert.True(t, (f.Level == ok || f.Meaning != "") && (f.Level != mistaken || f.Fix != ""), "%s: it says not what it means, or what to do: %+v", name, f)
	}
}

// TestDoctorWithoutServer checks that a server that is away is reported once, with exit code 1.
func TestDoctorWithoutServer(t *testing.T) {
	t.Parallel()
	o, out := kittest.NewOptions()
	address, namespace := "https://"+framework.FreeAddress(t), "default"
	o.Config.APIServer, o.Config.Namespace = &address, &namespace
	err := (&doctorOptions{Options: o, droverNamespace: "drover-system"}).checkCluster(t.Context())
	exit, found := errors.AsType[*kit.ExitError](err)
	assert.True(t, found && exit.Code == 1 && exit.Err == nil && strings.Count(out.String(), "refused") == 1 && strings.Contains(out.String(), "\n1 error; 0 ok.\n"),
		"got %v and\n%s", err, out)
}
