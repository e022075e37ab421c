// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/base64"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/rig"
)

// secretText is what must not appear anywhere, without characters that an encoding escapes.
const secretText = "Xyzzy42PlughTheSecret"

// TestSecretsAreNotExposed checks objects other than the Secret, events, files,
// command lines and logs at their highest verbosity.
func TestSecretsAreNotExposed(t *testing.T) {
	t.Parallel()
	w := rig.Start(t)
	w.Faults(t, `default/fails: {failCreate: 1000000}`)
	controller := w.Spawn(t, nil, "-v=10", "--usage-period=1s")

	late := w.Create(t, newSmallVM("late", "default", "fake").UserDataSecret("init", "user-data"))
	w.Await(t, late, rig.Soon, rig.Phase(api.PhaseFailed, api.ReasonSecretUnavailable), rig.Says(`"init"`), rig.Says("userData"))
	createSecret(t, w)
	w.Await(t, late, rig.Soon, rig.Active)
	if !w.Fake(t, late.UID).HasUserData {
		t.Error("the server got no user-data")
	}
	fails := w.Create(t, newSmallVM("fails", "default", "fake").UserDataSecret("init", "user-data"))
	w.Await(t, fails, rig.Soon, rig.Phase(api.PhaseFailed, api.ReasonOperationFailed))
	refused := w.Create(t, newSmallVM("refused", "default", "docker").UserDataSecret("init", "user-data"))
	w.Await(t, refused, rig.Soon, rig.Phase(api.PhaseFailed, api.ReasonUnsupported), rig.Says("userData"),
		rig.Condition(api.ConditionStalled, metav1.ConditionTrue))
	w.AwaitEvent(t, refused, api.ReasonUnsupported)
	if cmdline := readFileText(t, filepath.Join("/proc", strconv.Itoa(controller.PID()), "cmdline")); strings.Contains(cmdline, secretText) {
		t.Error("it is on the command line")
	}
	controller.MustStop()

	if log := controller.Output(); !strings.Contains(log, "/secrets/init") {
		t.Errorf("the log is too short to prove anything: %d bytes", len(log))
	}
	checkNotIn(t, "the log", controller.Output())
	objects, err := w.VMs.CloudnativeV1alpha1().VirtualMachines("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkNotIn(t, "an object", toJSON(t, objects))
	checkNotIn(t, "an event", toJSON(t, w.Events(t, nil)))
	checkNotInFolder(t, w.FakeDir)
}

func createSecret(t *testing.T, w *rig.World) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "init"},
		StringData: map[string]string{"user-data": "#cloud-config\npassword: " + secretText + "\n"},
	}
	if _, err := w.Kube.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// checkNotIn also knows the text as base64, at each of the three offsets.
func checkNotIn(t *testing.T, where, text string) {
	t.Helper()
	encodings := []string{secretText}
	for n := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("_", n) + secretText))
		encodings = append(encodings, encoded[4:24])
	}
	for _, encoding := range encodings {
		if at := strings.Index(text, encoding); at >= 0 {
			t.Errorf("%s has the secret: %q", where, text[max(0, at-200):at])
		}
	}
}

func checkNotInFolder(t *testing.T, dir string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			files++
			checkNotIn(t, path, readFileText(t, path))
		}
		return err
	})
	if err != nil || files < 2 {
		t.Errorf("%d files in %s, error %v", files, dir, err)
	}
}

func readFileText(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func toJSON(t *testing.T, object any) string {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
