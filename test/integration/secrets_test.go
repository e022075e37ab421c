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
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// hiddenText must not appear anywhere. No encoding would escape any of its characters.
const hiddenText = "Xyzzy42PlughTheSecret"

// TestSecretsAreNotExposed checks that a Secret's content is not in other objects, events,
// files, command lines, and logs at their highest verbosity.
func TestSecretsAreNotExposed(t *testing.T) {
	t.Parallel()
	w := testenv.StartVirtual(t)
	w.SetFaults(t, `fails: {failCreate: 1000000}`)
	controller := w.StartControllerProcess(t, nil, "-v=7", "--usage-period=1s")

	late := w.CreateVM(t, newSmallVM("late", "default", "fake").UserDataSecret("init", "user-data"))
	w.WaitForVM(t, late, framework.HasPhase(api.PhaseFailed, api.ReasonSecretUnavailable), framework.HasMessage(`"init"`), framework.HasMessage("userData"))
	createSecret(t, w)
	w.WaitForVM(t, late, framework.IsActive)
	assert.True(t, w.ReadFakeServer(t, late.UID).HasUserData, "the server got no user-data")
	fails := w.CreateVM(t, newSmallVM("fails", "default", "fake").UserDataSecret("init", "user-data"))
	w.WaitForVM(t, fails, framework.HasPhase(api.PhaseFailed, api.ReasonOperationFailed))
	refused := w.CreateVM(t, newSmallVM("refused", "default", "docker").UserDataSecret("init", "user-data"))
	w.WaitForVM(t, refused, framework.HasPhase(api.PhaseFailed, api.ReasonUnsupported), framework.HasMessage("userData"),
		framework.HasCondition(api.ConditionStalled, metav1.ConditionTrue))
	w.WaitForEvent(t, refused, api.ReasonUnsupported)
	assert.True(t, !strings.Contains(readFileText(t, filepath.Join("/proc", strconv.Itoa(controller.PID()), "cmdline")), hiddenText), "the secret is on the command line")
	controller.MustStop()

	log := controller.Output()
	assert.True(t, strings.Contains(log, "/secrets/init"), "the log of %d bytes lacks the request for the Secret, so that its level is too low", len(log))
	checkNotIn(t, "the log", controller.Output())
	// A hexadecimal dump could have parts of the text that the search does not find.
	assert.True(t, !strings.Contains(controller.Output(), "00000000  "), "the log has a hexadecimal dump")
	objects, err := w.VMsIn(w.Namespace).List(t.Context(), metav1.ListOptions{})
	assert.NoError(t, err)
	checkNotIn(t, "an object", toJSON(t, objects))
	checkNotIn(t, "an event", toJSON(t, w.ListEvents(t, nil)))
	checkNotInFolder(t, w.FakeDir)
}

func createSecret(t *testing.T, w *testenv.Environment) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "init"},
		StringData: map[string]string{"user-data": "#cloud-config\npassword: " + hiddenText + "\n"},
	}
	assert.NoError(t, assert.ErrorOf(w.KubeClient.CoreV1().Secrets(w.Namespace).Create(t.Context(), secret, metav1.CreateOptions{})))
}

// checkNotIn checks that a text does not contain hiddenText, neither as it is nor in base64 at any offset.
func checkNotIn(t *testing.T, where, text string) {
	t.Helper()
	encodings := []string{hiddenText}
	for n := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("_", n) + hiddenText))
		encodings = append(encodings, encoded[4:24])
	}
	for _, encoding := range encodings {
		at := strings.Index(text, encoding)
		assert.True(t, at < 0, "%s has the secret: %q", where, text[max(0, at-200):max(0, at)])
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
	assert.True(t, err == nil && files >= 2, "%d files in %s, error %v", files, dir, err)
}

func readFileText(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	assert.NoError(t, err)
	return string(content)
}

func toJSON(t *testing.T, object any) string {
	t.Helper()
	text, err := json.Marshal(object)
	assert.NoError(t, err)
	return string(text)
}
