// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	admission "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
)

// crdName is the name of the CustomResourceDefinition of VirtualMachines.
const crdName = "virtualmachines.cloudnative.tw"

// servedFacts are facts about the resources of the API, and the webhooks, that Drover depends on.
type servedFacts struct {
	stopped  bool
	err      error // why the API could not be asked
	crd      *apiextensionsv1.CustomResourceDefinition
	dead     []deadWebhook
	webhooks int // how many webhooks are called for resources that Drover writes
}

// deadWebhook is a webhook that does not answer.
type deadWebhook struct {
	webhook

	err error
}

func gatherServed(ctx context.Context, h *Host) (f servedFacts) {
	if !h.isDroverRunning() {
		f.stopped = true
		return f
	}
	all, err := f.readAPI(ctx, h)
	f.err = err
	f.findDead(ctx, all)
	return f
}

// readAPI reads the definition of VirtualMachines, and returns all webhooks.
func (f *servedFacts) readAPI(ctx context.Context, h *Host) ([]webhook, error) {
	config, err := h.ClientConfig()
	if err != nil {
		return nil, err
	}
	definitions, err := apiextensions.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	registrations, err := admission.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	f.crd, err = definitions.CustomResourceDefinitions().Get(ctx, crdName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		f.crd, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	return listWebhooks(ctx, registrations)
}

// webhook is a validating or mutating webhook.
type webhook struct {
	kind, configuration, name string
	client                    admissionv1.WebhookClientConfig
	policy                    *admissionv1.FailurePolicyType
	rules                     []admissionv1.RuleWithOperations
}

func listWebhooks(ctx context.Context, client admission.AdmissionregistrationV1Interface) (all []webhook, err error) {
	validating, err := client.ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, c := range validating.Items {
		for _, w := range c.Webhooks {
			all = append(all, webhook{"ValidatingWebhookConfiguration", c.Name, w.Name, w.ClientConfig, w.FailurePolicy, w.Rules})
		}
	}
	mutating, err := client.MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, c := range mutating.Items {
		for _, w := range c.Webhooks {
			all = append(all, webhook{"MutatingWebhookConfiguration", c.Name, w.Name, w.ClientConfig, w.FailurePolicy, w.Rules})
		}
	}
	return all, nil
}

// maxWebhooks bounds how many webhooks findDead connects to.
const maxWebhooks = 50

// findDead connects to the webhooks that are called for resources that Drover writes, and finds those that do not
// answer.
func (f *servedFacts) findDead(ctx context.Context, all []webhook) {
	all = slices.DeleteFunc(all, func(w webhook) bool { return len(w.concernedResources()) == 0 })
	all = all[:min(len(all), maxWebhooks)]
	f.webhooks = len(all)
	found := make([]error, len(all))
	var connecting sync.WaitGroup
	for i, w := range all {
		connecting.Go(func() { found[i] = w.connectOnce(ctx) })
	}
	connecting.Wait()
	for i, w := range all {
		if found[i] != nil {
			f.dead = append(f.dead, deadWebhook{w, found[i]})
		}
	}
}

// writtenResources are the resources that Drover writes. Without VirtualMachines it cannot work, and without Leases
// it cannot be elected.
var writtenResources = []struct{ group, resource string }{
	{"cloudnative.tw", "virtualmachines"}, {"cloudnative.tw", "virtualmachines/status"}, {"coordination.k8s.io", "leases"}, {"events.k8s.io", "events"}, {"", "events"},
}

// concernedResources returns the writtenResources for which a webhook is called.
func (w *webhook) concernedResources() (names []string) {
	for _, r := range writtenResources {
		if w.isCalledFor(r.group, r.resource) {
			names = append(names, strings.TrimSuffix(r.resource+"."+r.group, "."))
		}
	}
	return names
}

func (w *webhook) isCalledFor(group, resource string) bool {
	for _, rule := range w.rules {
		if matchesAny(rule.APIGroups, group) && matchesAny(rule.Resources, resource) {
			return true
		}
	}
	return false
}

// matchesAny reports whether a pattern of a webhook's rule matches a name. The pattern "*" matches all names
// except those of subresources, and "a/*" matches a and its subresources.
func matchesAny(patterns []string, name string) bool {
	resource, sub, _ := strings.Cut(name, "/")
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		wantResource, wantSub, _ := strings.Cut(pattern, "/")
		return (wantResource == "*" || wantResource == resource) && (wantSub == "*" || wantSub == sub)
	})
}

// connectTimeout is how long the connection to a webhook may take.
const connectTimeout = 2 * time.Second

// connectOnce connects to a webhook, and returns an error if the webhook does not answer.
func (w *webhook) connectOnce(ctx context.Context) error {
	switch {
	case w.client.Service != nil:
		return fmt.Errorf("the webhook is at Service %s/%s, but this cluster does not run Services", w.client.Service.Namespace, w.client.Service.Name)
	case w.client.URL == nil:
		return errors.New("the webhook has neither a Service nor a URL")
	}
	u, err := url.Parse(*w.client.URL)
	if err != nil {
		return err
	}
	dialer := net.Dialer{Timeout: connectTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")))
	if err == nil {
		_ = conn.Close()
	}
	return err
}

func judgeServed(f servedFacts) []findings.Finding {
	switch {
	case f.stopped:
		return nil
	case f.err != nil:
		return oneFinding(findings.Warning("the API could not be asked for its resources: %v", f.err).
			Means("Whether the API serves VirtualMachines, and which webhooks it waits for, is unknown. drover status says whether the API is ready."))
	}
	found := judgeCRD(f.crd)
	for _, w := range f.dead {
		found = append(found, judgeWebhook(w))
	}
	if len(found) > 0 {
		return found
	}
	return oneFinding(findings.OK("the API serves VirtualMachines; webhooks that it calls for them: %d", f.webhooks))
}

func judgeCRD(crd *apiextensionsv1.CustomResourceDefinition) []findings.Finding {
	const meaning = "Somebody has deleted the definition, and with it all VirtualMachines. No server is started, and kubectl vm does not find VMs."
	switch {
	case crd == nil:
		return oneFinding(findings.Error("the API lacks the CustomResourceDefinition %s", crdName).Means(meaning).
			FixedBy("start drover up again, which installs it, and apply your manifests"))
	case crd.DeletionTimestamp != nil:
		return oneFinding(findings.Error("CustomResourceDefinition %s is being deleted", crdName).Means("%s The definition disappears once Drover has removed all servers.", meaning).
			FixedBy("wait until the definition is gone, start drover up again, which installs it, and apply your manifests"))
	}
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.Established && c.Status != apiextensionsv1.ConditionTrue {
			return oneFinding(findings.Error("CustomResourceDefinition %s is not served: %s", crdName, c.Message).Means("No server is started, and kubectl vm does not find VMs.").
				FixedBy("remove what the message names, and start drover up again"))
		}
	}
	return nil
}

func judgeWebhook(w deadWebhook) findings.Finding {
	problem, meaning := findings.Error, "kube-apiserver refuses writes of %s, of users and of Drover."
	if w.policy != nil && *w.policy == admissionv1.Ignore {
		problem, meaning = findings.Warning, "Each write of %s waits for the webhook, as long as its timeoutSeconds."
	}
	return problem("webhook %s of %s %s does not answer: %v", w.name, w.kind, w.configuration, w.err).
		Means(meaning, strings.Join(w.concernedResources(), ", ")).
		FixedBy("start the webhook's server, or delete the configuration").
		FixedByCommand("drover kubectl delete %s %s", strings.ToLower(w.kind), w.configuration)
}
